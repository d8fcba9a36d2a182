// A cluster controller without a broker: joynr's own, and its server for applications. It stands in
// joynr's package, since only there the tables of what carries messages can be added to.

package io.joynr.runtime;

import io.joynr.messaging.websocket.WebSocketClientMessagingStubFactory;
import io.joynr.messaging.websocket.WebsocketMessagingSkeletonFactory;
import io.joynr.messaging.websocket.server.WebSocketJettyServerModule;
import joynr.system.RoutingTypes.WebSocketClientAddress;

public class Controller extends CCInProcessRuntimeModule {
    @Override
    protected void configure() {
        super.configure();
        Class<WebSocketClientAddress> client = WebSocketClientAddress.class;
        messagingStubFactory.addBinding(client).to(WebSocketClientMessagingStubFactory.class);
        messagingSkeletonFactory.addBinding(client).to(WebsocketMessagingSkeletonFactory.class);
        install(new WebSocketJettyServerModule());
    }
}
