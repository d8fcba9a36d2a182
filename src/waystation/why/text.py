"""The explanation of a message as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from waystation.why.explanation import Decision, Explanation, Hop, Step

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """The explanation as lines of text."""
    yield f"message {explanation.message_id}"
    yield explanation.summary
    for number, hop in enumerate(explanation.hops, 1):
        yield ""
        yield from _hop(number, hop)
    if explanation.remarks:
        yield ""
        yield from (f"note: {remark}" for remark in explanation.remarks)


def _hop(number: int, hop: Hop) -> Iterator[str]:
    what = f"published under {hop.multicast_id}" if hop.multicast_id else " => ".join(hop.onward)
    size = f"  ({hop.bytes} B)" if what else ""
    yield f"{number}. {hop.node}  {instant(hop.received_at)}  {what}{size}".rstrip()
    if what:  # built tables do not have the routes
        yield f"   return route  {' => '.join(hop.back) or 'none: no reply expected'}"
    for step in hop.steps:
        yield f"   {instant(step.at)}  {_step(step)}"
    for decision in hop.expected:
        yield f"   the rules say  {_decision(decision)}"
    if not hop.as_expected:
        yield "   which is not what happened"
    if hop.explanation:
        yield f"   because  {hop.explanation}"


def _step(step: Step) -> str:
    if step.recipient:
        return f"{step.outcome} to {step.recipient}"
    if step.next_hop:
        return f"{step.outcome} to {step.next_hop}"
    return f"{step.outcome} {step.reason or ''}".rstrip()


def _decision(decision: Decision) -> str:
    target = decision.recipient or decision.address
    words = [decision.outcome, decision.reason or "", f"({target})" if target else ""]
    text = " ".join(word for word in words if word)
    if decision.entry is None:
        return text
    kind = "local" if decision.local else "remote"
    since = f", since {instant(decision.since)}" if decision.since is not None else ""
    until = f", until {instant(decision.until)}" if decision.until is not None else ""
    return f"{text}: {kind} entry {decision.entry}{since}{until}"


def instant(microseconds: int) -> str:
    """A time in UTC, in microseconds.

    >>> instant(1_700_000_000_000_001)
    '2023-11-14 22:13:20.000001Z'
    """
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%fZ")
