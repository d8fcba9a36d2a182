"""How long a message waits that nobody can take at once, and how it ends then (WK-6).

The sender's policy decides for what is sent here. What a peer sent, or a worker sent on, stands in
the line of its receiver without anybody who waits with it, as long as there is room (FL-3, FL-4).
Each way to wait ends in a verdict: that of the receiver that took the message, or a drop.
Whom a message can wait for while nobody is there stands in `absent`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from waystation.core.budget import Account
from waystation.core.expiry import NEVER
from waystation.core.message import Arrival, Message
from waystation.core.outcome import Outcome, Reason, Verdict
from waystation.net.backoff import Backoff
from waystation.node.absent import AbsentReceiver, Key, PersistentPending
from waystation.node.flow import Held, Origin, size_of
from waystation.node.inbox import Pending, Ticket
from waystation.node.policy import WAIT, Fail, Line, Policy, Queue, Wait, check_seconds
from waystation.node.questions import QUESTION_TIME
from waystation.node.receiver import NoRoom, Outbound, Receiver
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
        # What of them peers sent, or senders that went on. Nobody is asked to wait for a name that
        # nobody has, so all of them together have as much room as several receivers.
        limits = kernel.limits
        self._for_absent = Account(max(limits.receiver, limits.budget // 4), kernel.account)

    async def wait(self, receiver: Receiver, arrival: Arrival, policy: Policy) -> Verdict:
        """Wait as a sender wants it."""
        if isinstance(policy, Line):
            return self.send_on(receiver, arrival)
        if isinstance(policy, Fail) or _is_pointless(receiver, policy):
            return self.drop(receiver, arrival)
        if isinstance(policy, Queue):
            return self._queue(receiver, arrival, policy)
        verdict = await self._until_taken(receiver, arrival, policy)
        return self._drop_late(receiver, arrival, policy) if verdict is None else verdict

    async def wait_for_name(self, receiver: Receiver, arrival: Arrival, policy: Wait) -> Verdict:
        """Wait as `wait` does; at a leaf also for a name that nobody has, asking its parents."""
        if not isinstance(receiver, AbsentReceiver) or not receiver.parent_may_know:
            return await self.wait(receiver, arrival, policy)
        policy = Wait(policy.seconds, persist=True)
        verdict = await self._until_taken(receiver, arrival, policy)
        if verdict is not None:
            return verdict
        name = receiver.verdict.recipient
        if name is not None and self.kernel.entry(name) is None:
            return self.kernel.drop(arrival, Reason.NO_ROUTE, name)
        return self._drop_late(receiver, arrival, policy)  # it came, and was not reached in time

    async def _until_taken(
        self, receiver: Receiver, arrival: Arrival, policy: Wait | Queue
    ) -> Verdict | None:
        """Wait for somebody to take a message; None if nobody did in time."""
        pending = self._start(receiver, arrival, policy)
        try:
            return await pending
        except asyncio.CancelledError:
            if pending.cancelled():
                self.drop(receiver, arrival)  # the sender takes the message with it
            raise

    def keep(self, receiver: Receiver, arrival: Arrival, outside: Message | None = None) -> Verdict:
        """Keep a peer's message until there is room; QUEUED, which is not recorded, or the drop.

        One that was sealed came inside of another, whose sender is the one to be held back.
        """
        if isinstance(receiver, AbsentReceiver):
            appear = self.kernel.limits.appear
            policy = Wait(appear, persist=True) if appear > 0 else WAIT
            return self._keep_for_absent(receiver, arrival, policy)
        return self.hold(receiver, arrival, self.kernel.flow.origin_of(outside or arrival.message))

    def send_on(self, receiver: Receiver, arrival: Arrival) -> Verdict:
        """Keep what a worker sent until there is room: the worker goes on meanwhile (FL-4).

        With an answer that does not get away, its asker is pressed: it shall ask no more.
        """
        kernel, message = self.kernel, arrival.message
        if isinstance(receiver, AbsentReceiver):
            verdict = self._keep_for_absent(receiver, arrival, WAIT)
        else:
            origin = kernel.flow.origin_of(message)
            session = receiver.session if isinstance(receiver, Outbound) else receiver
            back = message.return_route.first
            is_reply = origin is None
            if is_reply and isinstance(session, Session) and back is not None:
                origin = session, back
            verdict = self.hold(receiver, arrival, origin, patient=not is_reply)
        if verdict.reason is None:
            kernel.end(arrival, verdict, receiver.out)
        return verdict

    def hold(
        self,
        receiver: Receiver,
        arrival: Arrival,
        origin: Origin | None,
        *,
        patient: bool = True,
    ) -> Verdict:
        """Let a message stand in the line of its receiver, which nobody waits for.

        Without room it is dropped, except from a peer that cannot be told to wait: it is not read
        then, and loses nothing (FL-3). One that was told has sent more before it heard of it: that
        has the room of its session, if `patient`.
        """
        kernel, room, recipient = self.kernel, receiver.room(arrival), receiver.verdict.recipient
        size = size_of(arrival.message)
        if kernel.flow.sheds_from(origin):
            kernel.flow.shed += 1
            return kernel.drop_for(receiver, arrival, Reason.QUEUE_FULL)
        if not room.has_room(size) and (
            origin is None
            or kernel.flow.sheds
            or (origin[0].knows_hold and not (patient and room.makes_room(size, origin[0])))
        ):
            return kernel.drop_for(receiver, arrival, Reason.QUEUE_FULL)
        if patient and origin is not None:
            room.glance(origin[0])
        receiver.wait_for_room(arrival, Held(room, receiver, arrival, origin))
        room.watch()
        return Verdict(Outcome.QUEUED, None, recipient)

    def _keep_for_absent(self, receiver: AbsentReceiver, arrival: Arrival, policy: Wait) -> Verdict:
        """Let a message wait for somebody who is not there, without its sender."""
        kernel, recipient = self.kernel, receiver.verdict.recipient
        if _is_pointless(receiver, policy):
            return self.drop(receiver, arrival)
        if not self._has_room_for_absent(arrival):  # for all: a peer can make up any name
            return kernel.drop(arrival, Reason.QUEUE_FULL, recipient)
        pending = self._start(receiver, arrival, policy)
        self._count_until_done(self._for_absent, arrival, pending)

        def settled(_: object) -> None:
            if pending.result() is None:
                self.drop(receiver, arrival)

        pending.add_done_callback(settled)
        return Verdict(Outcome.QUEUED, None, recipient)

    def _has_room_for_absent(self, arrival: Arrival) -> bool:
        has_room = self._for_absent.has_room(size_of(arrival.message))
        return has_room and self.for_absent < self.QUEUE_LIMIT and not self.kernel.flow.sheds

    @staticmethod
    def _count_until_done(account: Account, arrival: Arrival, pending: Pending) -> None:
        size = size_of(arrival.message)
        account.take(size)
        pending.add_done_callback(lambda _: account.give_back(size))

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
        if receiver.waiting() >= self.QUEUE_LIMIT or not self._may_queue(receiver, arrival):
            return kernel.drop_for(receiver, arrival, Reason.QUEUE_FULL)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + check_seconds(policy.seconds)
        pending = self._start(receiver, arrival, policy)
        self._count_queued(receiver, arrival, pending)

        def expire(_: object) -> None:
            if pending.result() is not None:
                return
            if loop.time() < deadline - _TIMER_SLACK:
                self._drop_late(receiver, arrival, policy)
            else:
                kernel.drop(arrival, Reason.EXPIRED, recipient, receiver.out)

        pending.add_done_callback(expire)
        return kernel.end(arrival, Verdict(Outcome.QUEUED, None, recipient), receiver.out)

    def _may_queue(self, receiver: Receiver, arrival: Arrival) -> bool:
        if isinstance(receiver, AbsentReceiver):
            return self._for_absent.has_room(size_of(arrival.message))
        return receiver.room(arrival).has_room(size_of(arrival.message))

    def _count_queued(self, receiver: Receiver, arrival: Arrival, pending: Pending) -> None:
        """Count a message whose sender goes on, for as long as it waits for this receiver."""
        if isinstance(receiver, AbsentReceiver):
            self._count_until_done(self._for_absent, arrival, pending)
            return
        room, size = receiver.room(arrival), size_of(arrival.message)
        room.add(size, None)
        pending.add_done_callback(lambda _: room.remove(size, None))

    def _drop_late(self, receiver: Receiver, arrival: Arrival, policy: Wait | Queue) -> Verdict:
        """Drop a message that waited as long as it could, or for a node that closes."""
        kernel = self.kernel
        expiry, seconds = arrival.message.expiry, policy.seconds
        outlived = seconds is None or arrival.received_at / 1000 + seconds * 1000 >= expiry
        if policy.persist and expiry != NEVER and outlived and not kernel.is_closed:
            return kernel.drop_for(receiver, arrival, Reason.EXPIRED)
        return self.drop(receiver, arrival)

    def drop(self, receiver: Receiver, arrival: Arrival) -> Verdict:
        """Drop a message for the reason that its receiver has at this moment."""
        kernel, reason = self.kernel, receiver.refusal
        if isinstance(receiver, AbsentReceiver) and arrival.message.expired(kernel.tick() // 1000):
            reason = Reason.EXPIRED
        return kernel.drop_for(receiver, arrival, reason)

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

    def take_again(self, arrival: Arrival, pending: Ticket, backoff: Backoff) -> None:
        """Let a message that waits find its way."""
        if pending.done():
            return
        again = Arrival(
            arrival.message,
            self.kernel.tick(),
            arrival.from_global,
            via=arrival.via,
            replies_to=arrival.replies_to,
            sender=arrival.sender,
        )
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
