"""What the product promises, what it does not, and how that is tried: the page of the docs."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Promise(Struct, frozen=True):
    """One promise."""

    id: str
    text: str
    but: str
    """What it does not promise."""
    tested: str


PROMISES: Final = (
    Promise(
        "P1",
        "What is sent ends once at each node that it enters, and its sender is told; if nothing is "
        "broken it is delivered, and nothing expires before its time, whatever clocks are set to.",
        "that a message arrives which was under way when a link or a machine went; nor, over UDP, "
        "how a hub that was started anew with another time judges what a leaf sends it before that "
        "has noticed; nor how long a broadcast that comes over a broker seems to have left, if the "
        "publisher's clock differs",
        "every outcome in every history; deliveries in calm; expiries against true time",
    ),
    Promise(
        "P2",
        "What left one node entered the next, unless the link between them was lost; whatever is "
        "dropped is on record, with a reason.",
        "that bytes which the operating system has accepted arrive if the connection then breaks",
        "each FORWARDED against the entries of the next node",
    ),
    Promise(
        "P3",
        "From one sender to one receiver, what takes the same way arrives in the order sent.",
        "an order across a change of the way, or between durable and plain messages",
        "sequence numbers per sender, receiver and way",
    ),
    Promise(
        "P4",
        "A receiver gets a message at most once.",
        "that of a durable message whose handler ended in the moment of a crash: it comes again, "
        "and `context.attempt` says so",
        "receipts per message and receiver, also over links that repeat",
    ),
    Promise(
        "P5",
        "A broadcast enters a node once, and no message passes more nodes than the hop limit.",
        "that a second copy is never sent, only that it is recognised",
        "entries per node, in rings, meshes and diamonds",
    ),
    Promise(
        "P6",
        "A reply finds its way back while every node of the way lives.",
        "a reply after one of them was restarted: the request then fails, by its timeout at the "
        "latest",
        "requests that were received in calm",
    ),
    Promise(
        "P7",
        "A name outlives its process: messages go to the latest life of a node, to none before.",
        "how soon; the lab allows 75 seconds after the last fault",
        "the life that each receipt belongs to; nodes that came back receive again",
    ),
    Promise(
        "P8",
        "The rules of routing entries hold in every interleaving.",
        "anything of entries that a program puts by hand and contradicts",
        "the pipeline's kernels replay each change of each table",
    ),
    Promise(
        "P9",
        "Subscriptions and directory entries survive the restart of any node between.",
        "broadcasts that were published in the meantime, unless they are durable",
        "broadcasts in calm against all subscribers; the directory as each node sees it at the end",
    ),
    Promise(
        "P10",
        "A subscription gets what matches its pattern, and nothing else.",
        "any order between two publishers",
        "the slow and obvious matcher, over every receipt",
    ),
    Promise(
        "P11",
        "While one receiver is slow or stuck, what is for others arrives as soon as ever.",
        "that of a node whose whole budget is used up: sessions that hold most of it are not read",
        "delays of everybody else's messages, with receivers that take up to 30 seconds each",
    ),
    Promise(
        "P12",
        "What the journal has written is read as it was, after `kill -9` and, with "
        '`fsync = "flush"`, after a power loss; damage is told.',
        "the last flush interval before a crash; by default only sealed files are synced",
        "disks that are full, fail, tear the last write and flip bits, under the real journal",
    ),
    Promise(
        "P13",
        "What the pipeline says must have happened is what happened.",
        "that it knows grants, or what a link cannot express: such drops are taken as told",
        "`expected` and `audit` over the journals of every fleet",
    ),
    Promise(
        "P14",
        "Nothing durable that was acknowledged is lost, and nothing recorded as handled is handled "
        "again.",
        "that with `fsync` other than `full` after a power loss; nor beyond a peer without a store",
        "the real tables of the store, with a crash between any two of its steps, and a full disk",
    ),
    Promise(
        "P15",
        "Nobody gets, announces or publishes what is not granted, and nodes between the ends of a "
        "secure channel see ciphertext only.",
        "that nobody learns who talks to whom, when and how much",
        "an intruder with a key and no grant; a hub that repeats; a search for plaintext in all "
        "that is carried",
    ),
    Promise(
        "P16",
        "After the last fault every routing table is right, and nobody speaks any more.",
        "a bound on what is said until then",
        "each table followed to each worker, in eight kinds of topology",
    ),
    Promise(
        "P17",
        "What a node has received and not settled stays within one and a half times its budget.",
        "that of frames which have begun to come, if the budget is smaller than all of them "
        "together; nor what is at rest",
        "nodes with half a megabyte and large messages; memory of real processes in `make soak`",
    ),
)
