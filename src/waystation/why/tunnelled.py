"""Messages between members of groups, as a gossip router tells of them.

The rules of routing do not judge them. A copy that the router could not pass on is sent again by
JGroups under the same number, so it is lost only if no later attempt made that good: one to the
same member or, if it was for all, one to a member for each copy that was dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from waystation.core.address import Address
from waystation.core.address_types import GOSSIP
from waystation.core.outcome import Outcome
from waystation.core.visits import Loss, Step, Trace, Visit
from waystation.why.spans import span

_TO_MEMBERS: Final = f"{GOSSIP}#"


def is_tunnelled(visit: Visit) -> bool:
    """Whether it came to a gossip router; members of groups name the recipient, a router none."""
    first = visit.first
    to_members = bool(first.onward) and first.onward[0].startswith(_TO_MEMBERS)
    return to_members and all(
        step.recipient is None and step.outcome in (Outcome.FORWARDED, Outcome.DROPPED)
        for step in visit.steps
    )


def attempts_joined(traces: Sequence[Trace]) -> list[Trace]:
    """One trace for all attempts to send a message, whichever routers they went through."""
    if not traces or not all(is_tunnelled(v) for trace in traces for v in trace.visits):
        return list(traces)
    visits = sorted((v for trace in traces for v in trace.visits), key=lambda v: v.corrected)
    first, last = traces[0], visits[-1]
    losses = tuple(_losses(visits))
    lost = losses[-1] if losses else None
    ended = last if lost is None else visits[lost.visit]
    return [
        replace(
            first,
            origin=first.origin if len({trace.origin for trace in traces}) == 1 else None,
            visits=tuple(visits),
            losses=losses,
            started=visits[0].corrected,
            ended=max(trace.ended for trace in traces),
            latency=max(trace.ended for trace in traces) - visits[0].corrected,
            outcome=(Outcome.FORWARDED if lost is None else Outcome.DROPPED).value,
            reason=None if lost is None else lost.reason,
            place=ended.node,
            lost_copies=len(losses),
            left_fleet=sum(trace.left_fleet for trace in traces),
            looped=False,
        )
    ]


def tunnel_summary(trace: Trace, cause: str | None) -> str:
    """One line: how it ended, and whether JGroups made good what was dropped."""
    passed_on = [visit for visit in trace.visits if _is_passed_on(visit)]
    if trace.losses:
        others = "; passed on to others" if passed_on else ""
        return f"dropped at {trace.place}, {trace.reason}{f': {cause}' if cause else ''}{others}"
    last = passed_on[-1]
    drops = [(visit, step) for visit in trace.visits for step in _drops(visit)]
    if not drops:
        return f"passed on at {last.node} to {_whom(last)}"
    lost, step = drops[-1]
    return (
        f"dropped at {lost.node}, {step.reason}, then sent again and passed on at {last.node} to "
        f"{_whom(last)}, {span(last.corrected - lost.corrected)} later"
    )


def tunnel_notes(trace: Trace) -> Iterator[str]:
    """What JGroups calls it, and how often it was sent."""
    names = list(dict.fromkeys(filter(None, map(_name, trace.visits))))
    if names:
        times = len(trace.visits)
        often = "once" if times == 1 else "twice" if times == 2 else f"{times} times"
        yield f"JGroups calls it {', then '.join(names)}; it was sent {often}"


def not_registered(visit: Visit) -> str:
    """Why there was no way to those whom it was for."""
    return f"{_whom(visit)} was not registered at this router"


def _losses(visits: Sequence[Visit]) -> Iterator[Loss]:
    """The drops that no later attempt made good; a later one to the same tells of itself."""
    for index, visit in enumerate(visits):
        later = [other.first.onward for other in visits[index + 1 :]]
        if visit.first.onward in later:
            continue
        again = set(later) if visit.first.multicast_id is not None else ()
        for step in _drops(visit)[len(again) :]:
            yield Loss(index, visit.steps.index(step), None, str(step.reason))


def _drops(visit: Visit) -> list[Step]:
    return [step for step in visit.steps if step.outcome == Outcome.DROPPED]


def _is_passed_on(visit: Visit) -> bool:
    return any(step.outcome == Outcome.FORWARDED for step in visit.steps)


def _name(visit: Visit) -> str:
    """What the protocol of its sender calls it; empty if that could not be read."""
    return _text(visit.first.back[1]) if len(visit.first.back) > 1 else ""


def _whom(visit: Visit) -> str:
    group, mark, member = _text(visit.first.onward[0]).rpartition("/")
    if visit.first.multicast_id is not None or not mark:
        return f"the group {visit.first.multicast_id}"
    return f"{member} of the group {group}"


def _text(address: str) -> str:
    return Address.parse(address).data.decode(errors="replace")
