"""How long a message waits that nobody can take at once, and how it ends then (WK-6).

The sender's policy decides for what is sent here, the limits of the node for what a peer sent. Each
way to wait ends in a verdict: that of the receiver that took the message in the end, or a drop.
Whom a message can wait for while nobody is there stands in `absent`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from waystation.core.expiry import NEVER
from waystation.core.message import Arrival
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.net.backoff import Backoff
from waystation.node.absent import AbsentReceiver, Key, PersistentPending
from waystation.node.hierarchy import QUESTION_TIME
from waystation.node.inbox import Pending
from waystation.node.policy import WAIT, Fail, Policy, Queue, Wait, check_seconds
from waystation.node.receiver import NoRoom, Outbound, Receiver, verdicts_of
from waystation.node.session import Session

if TYPE_CHECKING:
    from waystation.node.kernel import Kernel

_TIMER_SLACK: Final = 0.005  # seconds; uvloop's timers may be a little early


class Waiting:
    """How the messages of one node wait for room."""

    QUEUE_LIMIT = 10_000  # messages that are kept for one receiver while their senders go on

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.waited_for: dict[Key, AbsentReceiver] = {}
        self.for_absent = 0  # messages that wait for somebody who is not there

    async def wait(self, receiver: Receiver, arrival: Arrival, policy: Policy) -> Verdict:
        """Wait as a sender wants it."""
        if isinstance(policy, Fail) or _is_pointless(receiver, policy):
            return self.drop(receiver, arrival)
        if isinstance(policy, Queue):
            return self._queue(receiver, arrival, policy)
        pending = self._start(receiver, arrival, policy)
        try:
            verdict = await pending
        except asyncio.CancelledError:
            if pending.cancelled():
                self.drop(receiver, arrival)  # the sender takes the message with it
            raise
        return self._drop_late(receiver, arrival, policy) if verdict is None else verdict

    def hold_back(self, receiver: Receiver, arrival: Arrival) -> Pending | None:
        """Keep a peer's message until there is room; a future while the peer has to wait as well.

        For somebody who is not there the peer does not wait: others would have to wait behind.
        """
        limits = self.kernel.limits
        if not isinstance(receiver, AbsentReceiver):
            return self.wait_or_drop(receiver, arrival, Wait(limits.stall))
        policy = Wait(limits.appear, persist=True) if limits.appear > 0 else WAIT
        if _is_pointless(receiver, policy):
            self.drop(receiver, arrival)
        elif self.for_absent >= self.QUEUE_LIMIT:  # for all: a peer can make up any name
            self.kernel.drop(arrival, Reason.QUEUE_FULL, receiver.verdict.recipient)
        else:
            self.wait_or_drop(receiver, arrival, policy)
        return None

    def wait_or_drop(self, receiver: Receiver, arrival: Arrival, policy: Wait) -> Pending:
        """Let a message wait without its sender; it is dropped if it is not taken in time."""
        pending = self._start(receiver, arrival, policy)

        def settled(_: object) -> None:
            if pending.result() is None:
                self.drop(receiver, arrival)

        pending.add_done_callback(settled)
        return pending

    def _start(self, receiver: Receiver, arrival: Arrival, policy: Wait | Queue) -> Pending:
        kernel, seconds = self.kernel, policy.seconds
        if policy.persist:
            if arrival.message.expiry != NEVER:
                left = max(0.0, arrival.message.expiry / 1000 - kernel.tick() / 1_000_000)
                seconds = left if seconds is None else min(seconds, left)
            pending: Pending = PersistentPending(self, arrival)
        else:
            pending = Pending()
            if isinstance(receiver, AbsentReceiver):
                seconds = QUESTION_TIME if seconds is None else min(seconds, QUESTION_TIME)
        if seconds is not None:
            pending.expire_after(check_seconds(seconds))
        elif isinstance(receiver, Outbound | Session) and not policy.persist:
            pending.expire_after(kernel.limits.reconnect, receiver.patience)
        receiver.wait_for_room(arrival, pending)
        return pending

    def _queue(self, receiver: Receiver, arrival: Arrival, policy: Queue) -> Verdict:
        """Keep a message for a receiver without making its sender wait."""
        kernel, recipient = self.kernel, receiver.verdict.recipient
        if receiver.waiting() >= self.QUEUE_LIMIT:
            return kernel.drop(arrival, Reason.QUEUE_FULL, recipient)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + check_seconds(policy.seconds)
        pending = self._start(receiver, arrival, policy)

        def expire(_: object) -> None:
            if pending.result() is not None:
                return
            if loop.time() < deadline - _TIMER_SLACK:
                self._drop_late(receiver, arrival, policy)
            else:
                kernel.drop(arrival, Reason.EXPIRED, recipient)

        pending.add_done_callback(expire)
        return kernel.end(arrival, Verdict(Outcome.QUEUED, None, recipient))

    def _drop_late(self, receiver: Receiver, arrival: Arrival, policy: Wait | Queue) -> Verdict:
        """Drop a message that waited as long as it could, or for a node that closes."""
        kernel = self.kernel
        expiry, seconds = arrival.message.expiry, policy.seconds
        outlived = seconds is None or arrival.received_at / 1000 + seconds * 1000 >= expiry
        if policy.persist and expiry != NEVER and outlived and not kernel.is_closed:
            return kernel.drop(arrival, Reason.EXPIRED, receiver.verdict.recipient)
        return self.drop(receiver, arrival)

    def drop(self, receiver: Receiver, arrival: Arrival) -> Verdict:
        """Drop a message for the reason that its receiver has at this moment."""
        kernel, reason = self.kernel, receiver.refusal
        if isinstance(receiver, AbsentReceiver) and arrival.message.expired(kernel.tick() // 1000):
            reason = Reason.EXPIRED
        return kernel.drop_each(arrival, reason, verdicts_of(receiver))

    # Who is not there

    def receiver(self, key: Key, reason: Reason, recipient: str | None) -> AbsentReceiver:
        """The receiver that stands for whoever is not there."""
        known = self.waited_for.get(key)
        return AbsentReceiver(self, key, reason, recipient) if known is None else known

    def appeared(self, key: Key) -> None:
        """Release what waits for somebody who is there now, before anything that is sent later."""
        absent = self.waited_for.get(key)
        if absent is not None:
            absent.release()

    def ask_again(self) -> None:
        """Ask for every name that is waited for: there is a parent that may know."""
        for absent in list(self.waited_for.values()):
            if absent.parent_may_know:
                absent.ask()

    def reject_all(self) -> None:
        """Tell everybody who waits that it is over."""
        for absent in list(self.waited_for.values()):
            absent.forget()
            while (first := absent.next()) is not None:
                first[1].give_up()

    def take_again(self, arrival: Arrival, pending: Pending, backoff: Backoff) -> None:
        """Let a message that waits find its way."""
        if pending.done():
            return
        again = Arrival(arrival.message, self.kernel.tick(), arrival.from_global)
        verdict = self.kernel.take(again)
        if type(verdict) is not NoRoom:
            pending.set_result(verdict)
            return
        if isinstance(pending, PersistentPending):
            pending.arrival = again
        receiver = verdict.receiver
        if isinstance(receiver, AbsentReceiver):
            receiver.backoff = backoff  # nothing changed: the next pause is longer
        receiver.wait_for_room(again, pending)


def _is_pointless(receiver: Receiver, policy: Wait | Queue) -> bool:
    """Whether nobody is there, nobody can be asked, and the sender does not want to wait."""
    return (
        isinstance(receiver, AbsentReceiver) and not policy.persist and not receiver.parent_may_know
    )
