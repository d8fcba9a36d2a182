"""Topics, filters, and which of them match: MQTT's own rules, no messages and no clients.

A filter is found by walking its levels, as core/multicast.py does for patterns; the cost of a match
does not grow with the filters that do not match. The rules differ from those of multicast ids in
small things: a level may be empty or hold any character, and a wildcard in front never matches a
topic that starts with `$`.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

ONE: Final = "+"
REST: Final = "#"
MAX_LEVELS: Final = 128
"""No topic and no filter has more levels; that bounds what is walked."""

T = TypeVar("T")


def is_topic(text: str) -> bool:
    """Whether something can be published there.

    >>> is_topic("a/b"), is_topic("a/+"), is_topic("")
    (True, False, False)
    """
    return (
        bool(text)
        and ONE not in text
        and REST not in text
        and "\0" not in text
        and text.count("/") < MAX_LEVELS
    )


def is_filter(text: str) -> bool:
    """Whether it can be subscribed to.

    >>> [is_filter(text) for text in ("a/+/#", "#", "a/#/b", "a+", "")]
    [True, True, False, False, False]
    """
    if not text or "\0" in text or text.count("/") >= MAX_LEVELS:
        return False
    levels = text.split("/")
    if REST in levels[:-1]:
        return False
    return all(level in (ONE, REST) or not {ONE, REST} & set(level) for level in levels)


class _Level(Generic[T]):
    """A place in the trie of filters."""

    __slots__ = ("children", "here", "one", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Level[T]] = {}
        self.one: _Level[T] | None = None
        self.here: dict[str, T] = {}  # of the filter that ends here, by whose it is
        self.rest: dict[str, T] = {}  # of the filter that ends here with a `#`

    def unused(self) -> bool:
        return not (self.children or self.one or self.here or self.rest)


class Filters(Generic[T]):
    """What was subscribed to, by whom.

    >>> filters = Filters()
    >>> filters.put("fleet/+/speed", "dashboard", 1)
    >>> filters.match("fleet/7/speed"), filters.match("fleet/7")
    ([1], [])
    """

    def __init__(self) -> None:
        self._root: _Level[T] = _Level()

    def put(self, filter: str, whose: str, value: T) -> None:
        """Add a filter of somebody, or change its value."""
        level = self._root
        levels = filter.split("/")
        for name in levels:
            if name == REST:
                level.rest[whose] = value
                return
            if name == ONE:
                level.one = level = level.one or _Level()
            else:
                level = level.children.setdefault(name, _Level())
        level.here[whose] = value

    def remove(self, filter: str, whose: str) -> None:
        """Take a filter away that was put, and the places that nobody needs any more."""
        levels = filter.split("/")
        rest = levels[-1] == REST
        if rest:
            del levels[-1]
        path = [self._root]
        for name in levels:
            child = path[-1].one if name == ONE else path[-1].children[name]
            assert child is not None
            path.append(child)
        del (path[-1].rest if rest else path[-1].here)[whose]
        for name in reversed(levels):
            if not path.pop().unused():
                return
            if name == ONE:
                path[-1].one = None
            else:
                del path[-1].children[name]

    def match(self, topic: str) -> list[T]:
        """The values of all filters that match a topic."""
        found: list[T] = []
        levels = [self._root]
        hidden = topic.startswith("$")  # from wildcards in front
        for name in topic.split("/"):
            following: list[_Level[T]] = []
            for level in levels:
                if level.rest and not hidden:
                    found += level.rest.values()
                child = level.children.get(name)
                if child is not None:
                    following.append(child)
                if level.one is not None and not hidden:
                    following.append(level.one)
            if not following:
                return found
            levels = following
            hidden = False
        for level in levels:
            found += level.here.values()
            found += level.rest.values()
        return found


class _Branch(Generic[T]):
    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Branch[T]] = {}
        self.value: T | None = None


class TopicTree(Generic[T]):
    """Values by topic, to be found by a filter.

    >>> tree = TopicTree()
    >>> tree.put("fleet/7/speed", 90)
    >>> tree.match("fleet/#"), tree.match("fleet/+"), tree.match("fleet/7/speed")
    ([90], [], [90])
    """

    def __init__(self) -> None:
        self._root: _Branch[T] = _Branch()

    def get(self, topic: str) -> T | None:
        """The value at a topic."""
        branch: _Branch[T] | None = self._root
        for name in topic.split("/"):
            branch = branch.children.get(name) if branch is not None else None
        return None if branch is None else branch.value

    def put(self, topic: str, value: T) -> None:
        """Set the value at a topic."""
        branch = self._root
        for name in topic.split("/"):
            branch = branch.children.setdefault(name, _Branch())
        branch.value = value

    def remove(self, topic: str) -> None:
        """Forget the value at a topic, which has one."""
        path = [self._root]
        names = topic.split("/")
        for name in names:
            path.append(path[-1].children[name])
        path[-1].value = None
        for name in reversed(names):
            branch = path.pop()
            if branch.children or branch.value is not None:
                return
            del path[-1].children[name]

    def match(self, filter: str) -> list[T]:
        """The values at all topics that a filter matches."""
        branches = [self._root]
        hidden = True  # what starts with `$`, from wildcards in front
        for name in filter.split("/"):
            if name == REST:
                return [v for branch in branches for v in _below(branch, hidden=hidden)]
            following: list[_Branch[T]] = []
            for branch in branches:
                if name == ONE:
                    following += _children(branch, hidden=hidden)
                elif name in branch.children:
                    following.append(branch.children[name])
            branches = following
            hidden = False
        return [branch.value for branch in branches if branch.value is not None]


def _children(branch: _Branch[T], *, hidden: bool) -> list[_Branch[T]]:
    children = branch.children
    return [child for name, child in children.items() if not (hidden and name.startswith("$"))]


def _below(branch: _Branch[T], *, hidden: bool) -> list[T]:
    """The values at a branch and at everything behind it."""
    found: list[T] = []
    waiting = [branch] if not hidden else _children(branch, hidden=True)
    while waiting:
        branch = waiting.pop()
        if branch.value is not None:
            found.append(branch.value)
        waiting += branch.children.values()
    return found
