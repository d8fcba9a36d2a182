// A joynr application that does what the lines on its stdin say, and prints what happens.
//
//   java App ws <port of the cluster controller> <directory for its files>
//   java App mqtt <url of the broker> <directory for its files>
//   java App controller <port> <directory for its files>       (a cluster controller for others)
//
// Behind these there may be settings of joynr's, <name>=<value> each.
//
// Nothing of joynr is replaced: it is what an application of its own would use.
//
//   provide <domain> local|global [<participant>]   offers a Door
//   withdraw                                         no longer
//   find <domain> local|global|both|then             takes a proxy for the Door of a domain
//   fixed <domain> <participant>                     takes a proxy for that very one
//   open <who> | fail <why> | knock <who> | get | set <number>    calls it
//   follow                                           subscribes to its position
//   hear [<partition> ...]                           subscribes to its bell
//   hush                                             ends that subscription
//   ring <tone> [<partition> ...]                    as a provider, rings

import com.google.inject.util.Modules;
import io.joynr.arbitration.ArbitrationStrategy;
import io.joynr.arbitration.DiscoveryQos;
import io.joynr.arbitration.DiscoveryScope;
import io.joynr.messaging.MessagingPropertyKeys;
import io.joynr.messaging.MessagingQos;
import io.joynr.messaging.mqtt.hivemq.client.HivemqMqttClientModule;
import io.joynr.messaging.websocket.WebsocketModule;
import io.joynr.provider.DeferredVoid;
import io.joynr.provider.Promise;
import io.joynr.proxy.Future;
import io.joynr.proxy.ProxyBuilder;
import io.joynr.pubsub.subscription.AttributeSubscriptionAdapter;
import io.joynr.runtime.AbstractJoynrApplication;
import io.joynr.runtime.CCInProcessRuntimeModule;
import io.joynr.runtime.JoynrApplication;
import io.joynr.runtime.JoynrApplicationModule;
import io.joynr.runtime.JoynrInjectorFactory;
import io.joynr.runtime.LibjoynrWebSocketRuntimeModule;
import com.google.inject.Module;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Properties;
import joynr.MulticastSubscriptionQos;
import joynr.OnChangeSubscriptionQos;
import joynr.exceptions.ProviderRuntimeException;
import joynr.types.ProviderQos;
import joynr.types.ProviderScope;
import joynr.way.DefaultDoorProvider;
import joynr.way.DoorBroadcastInterface.BellBroadcastAdapter;
import joynr.way.DoorProxy;

public class App extends AbstractJoynrApplication {
    private final DoorProvider door = new DoorProvider();
    private DoorProxy proxy;
    private String bell;

    static class DoorProvider extends DefaultDoorProvider {
        DoorProvider() {
            position = 0;
        }

        @Override
        public Promise<OpenDeferred> open(String who) {
            OpenDeferred deferred = new OpenDeferred();
            deferred.resolve("welcome " + who);
            return new Promise<>(deferred);
        }

        @Override
        public Promise<DeferredVoid> fail(String why) {
            DeferredVoid deferred = new DeferredVoid();
            deferred.reject(new ProviderRuntimeException(why));
            return new Promise<>(deferred);
        }

        @Override
        public void knock(String who) {
            say("knocked " + who);
        }
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        String kind = arguments[0];
        String where = arguments[1];
        Properties properties = new Properties();
        properties.put(MessagingPropertyKeys.PERSISTENCE_FILE, arguments[2] + "/joynr.properties");
        properties.put("joynr.messaging.sendmsgretryintervalms", "200");
        properties.put("joynr.discovery.retry.interval.ms", "300");
        properties.put("joynr.discovery.default.retry.interval.ms", "300");
        Module runtime;
        if (kind.equals("mqtt")) {
            properties.put("joynr.messaging.mqtt.brokeruris", where);
            properties.put("joynr.messaging.gbids", "joynrdefaultgbid");
            properties.put("joynr.discovery.globaladdentrydelayms", "0");
            runtime = Modules.override(new CCInProcessRuntimeModule()).with(new HivemqMqttClientModule());
        } else {
            properties.put(WebsocketModule.PROPERTY_WEBSOCKET_MESSAGING_HOST, "127.0.0.1");
            properties.put(WebsocketModule.PROPERTY_WEBSOCKET_MESSAGING_PORT, where);
            properties.put(WebsocketModule.PROPERTY_WEBSOCKET_MESSAGING_PROTOCOL, "ws");
            properties.put(WebsocketModule.PROPERTY_WEBSOCKET_MESSAGING_PATH, "/");
            properties.put(WebsocketModule.PROPERTY_WEBSOCKET_MESSAGING_RECONNECT_DELAY, "200");
            runtime = kind.equals("ws")
                    ? new LibjoynrWebSocketRuntimeModule()
                    : new io.joynr.runtime.Controller();
        }
        for (int i = 3; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            properties.put(setting[0], setting[1]);
        }
        Properties none = new Properties();
        JoynrApplication application = new JoynrInjectorFactory(properties, runtime).createApplication(
                new JoynrApplicationModule(App.class, none) {});
        application.run();
        application.shutdown();
        System.exit(0);
    }

    @Override
    public void run() {
        say("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        try {
            for (String line = orders.readLine(); line != null; line = orders.readLine()) {
                try {
                    obey(line.trim().split(" "));
                } catch (Exception error) {
                    say("error " + line.trim().split(" ")[0] + " " + error);
                }
            }
        } catch (java.io.IOException end) {
            say("error " + end);
        }
    }

    private void obey(String[] words) throws Exception {
        switch (words[0]) {
        case "provide":
            ProviderQos qos = new ProviderQos();
            qos.setScope(words[2].equals("global") ? ProviderScope.GLOBAL : ProviderScope.LOCAL);
            qos.setPriority(1L);
            runtime.getProviderRegistrar(words[1], door).withProviderQos(qos).awaitGlobalRegistration().register().get(30000);
            say("provided");
            break;
        case "withdraw":
            runtime.unregisterProvider(words[1], door);
            say("withdrawn");
            break;
        case "find":
            DiscoveryQos where = new DiscoveryQos(60000, ArbitrationStrategy.HighestPriority, 0);
            where.setDiscoveryScope(words[2].equals("local") ? DiscoveryScope.LOCAL_ONLY
                    : words[2].equals("global") ? DiscoveryScope.GLOBAL_ONLY
                    : words[2].equals("both") ? DiscoveryScope.LOCAL_AND_GLOBAL : DiscoveryScope.LOCAL_THEN_GLOBAL);
            take(words[1], where);
            break;
        case "fixed":
            DiscoveryQos fixed = new DiscoveryQos(60000, ArbitrationStrategy.FixedChannel, 0);
            fixed.addCustomParameter(io.joynr.arbitration.ArbitrationConstants.FIXEDPARTICIPANT_KEYWORD, words[2]);
            take(words[1], fixed);
            break;
        case "open":
            say("opened " + proxy.open(words[1]));
            break;
        case "header":
            MessagingQos with = new MessagingQos(30000);
            with.putCustomMessageHeader(words[1], words[2]);
            say("opened " + proxy.open(words[3], with));
            break;
        case "fail":
            proxy.fail(words[1]);
            break;
        case "knock":
            proxy.knock(words[1]);
            break;
        case "get":
            say("position " + proxy.getPosition());
            break;
        case "set":
            proxy.setPosition(Integer.valueOf(words[1]));
            say("set");
            break;
        case "follow":
            proxy.subscribeToPosition(new AttributeSubscriptionAdapter<Integer>() {
                @Override
                public void onReceive(Integer value) {
                    say("moved " + value);
                }
            }, new OnChangeSubscriptionQos().setMinIntervalMs(0).setValidityMs(600000)).get(30000);
            say("following");
            break;
        case "hear":
            Future<String> heard = proxy.subscribeToBellBroadcast(new BellBroadcastAdapter() {
                @Override
                public void onReceive(String tone) {
                    say("rang " + tone);
                }
            }, new MulticastSubscriptionQos().setValidityMs(600000), Arrays.copyOfRange(words, 1, words.length));
            bell = heard.get(30000);
            say("hearing");
            break;
        case "hush":
            proxy.unsubscribeFromBellBroadcast(bell);
            say("hushed");
            break;
        case "ring":
            door.fireBell(words[1], Arrays.copyOfRange(words, 2, words.length));
            say("ringing");
            break;
        default:
            say("error unknown " + words[0]);
        }
    }

    private void take(String domain, DiscoveryQos where) throws Exception {
        proxy = runtime.getProxyBuilder(domain, DoorProxy.class)
                       .setMessagingQos(new MessagingQos(30000))
                       .setDiscoveryQos(where)
                       .build(new ProxyBuilder.ProxyCreatedCallback<DoorProxy>() {
                           @Override
                           public void onProxyCreationFinished(DoorProxy result) {
                               say("found");
                           }

                           @Override
                           public void onProxyCreationError(io.joynr.exceptions.JoynrRuntimeException error) {
                               say("error find " + error);
                           }

                           @Override
                           public void onProxyCreationError(io.joynr.exceptions.DiscoveryException error) {
                               say("error find " + error);
                           }
                       });
    }

    @Override
    public void shutdown() {
        runtime.shutdown(false);
    }
}
