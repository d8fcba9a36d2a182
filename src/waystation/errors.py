"""All exceptions of Waystation, and nothing else.

    WaystationError
    ├── LocalError          the caller made a mistake (also a ValueError)
    ├── UndeliverableError  a request was dropped on its way
    ├── NoReplyError        a request got no reply in time (also a TimeoutError)
    ├── UnreachableError    a peer could not be connected to (also a ConnectionError)
    ├── NotTrusted          the peer of a secure channel is another than was expected
    ├── NotReadyError       a parent did not take what was announced (also a TimeoutError)
    ├── NameTaken           another node holds a name of this one
    └── RemoteError         a peer did something wrong
        └── DecodeError         its bytes are not valid in their format

A LocalError is raised at once, where the mistake is made, and names the value, the rule and what to
do. What a peer does never raises in the core: there it becomes an outcome with a reason (OB-2).
Only decoders raise a RemoteError, and their callers turn it into such an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_SHOWN_CHARACTERS = 60


class WaystationError(Exception):
    """Base class of all exceptions that Waystation raises.

    `message_id` is the id of the message that it is about, None if it is about no message or if
    there is none yet: what the caller gave was no message.
    """

    message_id: str | None = None


class LocalError(WaystationError, ValueError):
    """The caller broke a rule.

    >>> raise LocalError("type 256 is out of range", rule="AD-1", hint="give 0..255")
    Traceback (most recent call last):
    waystation.errors.LocalError: type 256 is out of range; give 0..255
    """

    def __init__(self, problem: str, *, rule: str, hint: str) -> None:
        super().__init__(f"{problem}; {hint}")
        self.problem = problem
        self.rule = rule
        self.hint = hint


class UndeliverableError(WaystationError):
    """A request was dropped, so there will be no reply; `reason` says why (OB-2).

    `node` is the name of the node that dropped it, None for this one. `message_id` is the id of the
    request, by which `waystation why` tells its story.
    """

    message_id: str

    def __init__(
        self, route: str, reason: str, node: str | None = None, message_id: str = ""
    ) -> None:
        where = "" if node is None else f" by node {quote(node)}"
        super().__init__(f"the request to {route} was dropped{where}: {reason}{_id(message_id)}")
        self.route = route
        self.reason = reason
        self.node = node
        self.message_id = message_id


class NoReplyError(WaystationError, TimeoutError):
    """A request got no reply in time; `message_id` is its id."""

    message_id: str

    def __init__(self, route: str, seconds: float, message_id: str = "") -> None:
        super().__init__(f"no reply from {route} within {seconds:g} s{_id(message_id)}")
        self.route = route
        self.seconds = seconds
        self.message_id = message_id


class UnreachableError(WaystationError, ConnectionError):
    """No session with a peer opened in time; `detail` says why the last attempt failed."""

    def __init__(self, place: str, detail: str) -> None:
        where = place.rpartition("#")[2]  # without the address type
        text = detail if detail.startswith(f"{where}:") else f"{where}: {detail}"
        super().__init__(f"cannot connect to {text}")
        self.place = place
        self.detail = detail


class NotTrusted(WaystationError):  # noqa: N818 - as NameTaken
    """Whoever answered proved to be `identity`, which is not one of those to trust (ID-4)."""

    def __init__(self, route: str, identity: str) -> None:
        super().__init__(
            f"{route} is {identity}, which is not trusted; "
            "add it to `trust` if that is whom you meant"
        )
        self.route = route
        self.identity = identity


class NotReadyError(WaystationError, TimeoutError):
    """Parents did not say in time that they took what this node announced.

    `parents` are the names of the sessions with them, each with what is wrong.

    >>> raise NotReadyError({"hub": "is not a hub; create it with hub=True"})
    Traceback (most recent call last):
    waystation.errors.NotReadyError: not ready: parent 'hub' is not a hub; create it with hub=True
    """

    def __init__(self, parents: Mapping[str, str]) -> None:
        told = ". Also, ".join(f"parent {quote(name)} {why}" for name, why in parents.items())
        super().__init__(f"not ready: {told}")
        self.parents = dict(parents)


class NameTaken(WaystationError):  # noqa: N818 - programs that use it know it by this name
    """A name of this node is held by another node, `holder`, so messages to it go there (CL-4).

    `taken` has all such names with their holders; `name` is the first of them.

    >>> error = NameTaken({"truck-7": "garage"}, ["10.0.0.1:4000 (node 'hub')"])
    >>> str(error).partition(",")[0]
    "node 'garage' holds the name 'truck-7' at 10.0.0.1:4000 (node 'hub')"
    """

    def __init__(self, taken: Mapping[str, str], places: Iterable[str]) -> None:
        self.taken = dict(taken)
        self.name, self.holder = next(iter(self.taken.items()))
        others = f" (and others hold {len(taken) - 1} more)" if len(taken) > 1 else ""
        super().__init__(
            f"node {quote(self.holder)} holds the name {quote(self.name)}{others} "
            f"at {', '.join(places)}, and messages to it go there; "
            "choose another name, or stop that one"
        )


class RemoteError(WaystationError):
    """A peer violated its protocol."""


class DecodeError(RemoteError):
    """Bytes from a peer are not valid in their format.

    `format` names the format, `offset` is the position of the problem in the given bytes (or -1),
    and `too_large` tells a length above a limit (TOO_LARGE) from all other problems (MALFORMED).

    >>> raise DecodeError("the length is 17 MiB", format="ockam", offset=0, too_large=True)
    Traceback (most recent call last):
    waystation.errors.DecodeError: ockam: the length is 17 MiB (at byte 0)
    """

    def __init__(
        self, problem: str, *, format: str, offset: int = -1, too_large: bool = False
    ) -> None:
        where = f" (at byte {offset})" if offset >= 0 else ""
        super().__init__(f"{format}: {problem}{where}")
        self.problem = problem
        self.format = format
        self.offset = offset
        self.too_large = too_large


def _id(message_id: str) -> str:
    return f" (message {message_id})" if message_id else ""


def quote(value: object) -> str:
    """A value for an error message: its repr, shortened to less than a line.

    >>> quote("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    if isinstance(value, str | bytes):  # never format a megabyte to show sixty characters of it
        value = value[: _SHOWN_CHARACTERS + 1]
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
