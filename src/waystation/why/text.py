"""The explanation of a message as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from waystation.core.outcome import Outcome
from waystation.why.explanation import Decision, Explanation, Hop, Step
from waystation.why.story import origin_name

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """The explanation as lines of text."""
    yield f"message {explanation.message_id}"
    if len(explanation.ways) > 1:
        yield f"{len(explanation.ways)} messages have this id, from different origins"
    hops = list(enumerate(explanation.hops))
    for number, way in enumerate(explanation.ways):
        if len(explanation.ways) > 1:
            yield ""
            yield f"from {origin_name(way.origin)}: {way.summary}"
        else:
            yield way.summary
        yield from way.notes
        for index, hop in hops:
            if hop.way == number:
                yield ""
                yield from _hop(index, hop)
    if explanation.remarks:
        yield ""
        yield from (f"note: {remark}" for remark in explanation.remarks)


def timeline(explanation: Explanation) -> list[tuple[str, str, str, str]]:
    """Every step with the time since the first, its node, its outcome, and the rest, aligned.

    Times are corrected, so that they can be compared; steps are in causal order.
    """
    if not explanation.hops:
        return []
    first = min(hop.received_at - hop.clock_ahead_us for hop in explanation.hops)
    rows = [
        (
            f"+{(step.at - hop.clock_ahead_us - first) / 1000:,.3f} ms",
            hop.node,
            step.outcome,
            _step(step, hop).removeprefix(step.outcome).strip(),
        )
        for hop in explanation.hops
        for step in hop.steps
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    return [
        (row[0].rjust(widths[0]), row[1].ljust(widths[1]), row[2].ljust(widths[2]), row[3])
        for row in rows
    ]


def _hop(index: int, hop: Hop) -> Iterator[str]:
    what = f"published under {hop.multicast_id}" if hop.multicast_id else " => ".join(hop.onward)
    size = f"  ({hop.bytes} B)" if hop.onward else ""
    yield f"{index + 1}. {hop.node}  {instant(hop.received_at)}  {what}{size}".rstrip()
    if hop.follows is not None and hop.follows != index - 1:
        yield f"   came from hop {hop.follows + 1}"
    if hop.onward:  # built tables do not have the routes
        yield f"   return route  {' => '.join(hop.back) or 'none: no reply expected'}"
    if hop.sender:
        yield f"   sent by  {hop.sender} (proven)"
    for step in hop.steps:
        yield f"   {instant(step.at)}  {_step(step, hop)}"
        if step.remark:
            yield f"   {step.remark}"
    for decision in hop.expected:
        yield f"   the rules say  {_decision(decision)}"
    if not hop.as_expected:
        yield "   which is not what happened"
    if hop.explanation:
        yield f"   because  {hop.explanation}"


def _step(step: Step, hop: Hop) -> str:
    """An outcome: who got it, which node it was sent to, or why neither, and whom it was for."""
    if step.outcome == Outcome.DELIVERED:
        return f"{step.outcome} to {step.recipient}" if step.recipient else step.outcome
    where = f" to {step.next_node or step.next_hop}" if step.next_node or step.next_hop else ""
    if step.outcome != Outcome.FORWARDED:
        where = f" {step.reason}" if step.reason else ""
    whom = f" for {step.recipient}" if hop.multicast_id and step.recipient else ""
    return f"{step.outcome}{where}{whom}"


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
