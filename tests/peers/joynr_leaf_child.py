"""A node of ours at a cluster controller of joynr's own, in a process with a network of its own."""

from __future__ import annotations

import asyncio
import json

from tests.peers.joynr_java_peer import java_app
from waystation.core.message import Message
from waystation.node import Context, Node
from waystation.testing import run_checked, until
from waystation.transports.joynr import JoynrWebSocket
from waystation.wire.joynr import Reply, Request, decode_payload, encode_payload

PORT = 4242


async def scenario() -> None:
    """Both ways: found and called by an application there, and finding and calling one."""

    async def door(message: Message, context: Context) -> None:
        request = decode_payload(message.payload)
        if isinstance(request, Request):
            welcome = (f"our welcome {request.params[0]}",)
            reply = Reply(request_reply_id=request.request_reply_id, response=welcome)
            await context.reply(encode_payload(reply))

    async with (
        java_app("controller", PORT, "controller"),
        java_app("ws", PORT, "alice") as alice,
        Node("leaf", transports=[JoynrWebSocket()]) as leaf,
    ):
        parent = await leaf.connect(f"joynr+ws://127.0.0.1:{PORT}", parent=True, wait=60)
        leaf.start_worker(("our-door",), door)
        await leaf.ready()
        await leaf.register("our-door", "yard", "way/Door")
        await alice.does("find yard local", "found")
        await alice.does("open alice", "opened our welcome alice")
        await alice.does("hear eu *", "hearing")
        publication = {"_typeName": "joynr.MulticastPublication", "response": ["ours"]}
        publication["multicastId"] = "our-door/bell/eu/de"
        said = json.dumps(publication).encode()
        await leaf.publish("bell", said, partition="eu/de", provider="our-door")
        await alice.hears("rang ours")

        await alice.does("provide fleet local", "provided")
        (found,) = await leaf.discover("fleet", "way/Door")
        request = Request(
            method_name="open",
            param_datatypes=("String",),
            params=("leaf",),
            request_reply_id=leaf.new_id(),
        )
        for _ in range(3):
            answer = await leaf.request(found.participant, encode_payload(request))
            reply = decode_payload(answer.payload)
            assert isinstance(reply, Reply)
            assert reply.response == ("welcome leaf",)
        heard: list[Message] = []
        async with leaf.subscribe(found.participant, "bell", "*", callback=heard.append):
            await asyncio.sleep(0.5)  # its hub answers nothing that says it has subscribed
            await alice.does("ring la eu de", "ringing")
            await until(lambda: heard)
        parent.abort_link()
        await until(lambda: parent.is_open and parent.openings > 1, seconds=60)
        await alice.does("open again", "opened our welcome again")
        await leaf.unregister("our-door")


if __name__ == "__main__":
    run_checked(scenario, seconds=200)
