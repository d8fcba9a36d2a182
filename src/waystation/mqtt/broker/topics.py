"""Topics, filters, and which of them match: MQTT's own rules, no messages and no clients.

Both are kept in the same kind of trie, by their levels: filters, to find those that match a topic,
and topics, to find those that match a filter. What does not match costs nothing. The rules differ
from those of core/multicast.py in small things: a level may be empty or hold any character, and a
wildcard in front never matches a topic that starts with `$`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

ONE: Final = "+"
REST: Final = "#"
MAX_LEVELS: Final = 128
"""No topic and no filter has more levels; that bounds what is walked."""

_FORBIDDEN: Final = frozenset({ONE, REST, "\0"})  # in the names of levels

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
    levels = text.split("/")
    if not text or len(levels) > MAX_LEVELS or REST in levels[:-1]:
        return False
    return all(level in (ONE, REST) or _FORBIDDEN.isdisjoint(level) for level in levels)


SHARED: Final = "$share/"
"""How the filter of a shared subscription begins."""


def split_share(filter: str) -> tuple[str, str]:
    """The group of a shared subscription, and what its members share; no group for any other.

    >>> split_share("$share/workers/a/+"), split_share("a/+"), split_share("$share/a")
    (('workers', 'a/+'), ('', 'a/+'), ('', ''))
    """
    if not filter.startswith(SHARED):
        return "", filter
    group, _, pattern = filter.removeprefix(SHARED).partition("/")
    if not group or not pattern or not _FORBIDDEN.isdisjoint(group):
        return "", ""  # which nobody can subscribe to
    return group, pattern


class _Node(Generic[T]):
    """A level; the wildcards are children like any other."""

    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[str, T] = {}  # by key

    def named_children(self, *, hidden: bool) -> Iterable[_Node[T]]:
        """The children, without those that start with `$` if they are hidden."""
        if not hidden:
            return self.children.values()
        return [node for name, node in self.children.items() if not name.startswith("$")]


class TopicTrie(Generic[T]):
    """Values by a topic or a filter, and by a key where one has several.

    >>> filters = TopicTrie()
    >>> filters.put("fleet/+/speed", "dashboard", 1)
    >>> filters.match_topic("fleet/7/speed"), filters.match_topic("fleet/7")
    ([1], [])
    >>> topics = TopicTrie()
    >>> topics.put("fleet/7/speed", "", 90)
    >>> topics.match_filter("fleet/#"), topics.match_filter("fleet/+")
    ([90], [])
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def __bool__(self) -> bool:
        """Whether anything is in it."""
        return bool(self._root.children)

    def put(self, path: str, key: str, value: T) -> None:
        """Set a value."""
        node = self._root
        for name in path.split("/"):
            node = node.children.setdefault(name, _Node())
        node.values[key] = value

    def get(self, path: str, key: str) -> T | None:
        """The value that was put."""
        node: _Node[T] | None = self._root
        for name in path.split("/"):
            node = node.children.get(name) if node is not None else None
        return None if node is None else node.values.get(key)

    def remove(self, path: str, key: str) -> None:
        """Remove a value that was put, and the levels that are no longer needed."""
        names = path.split("/")
        nodes = [self._root]
        for name in names:
            nodes.append(nodes[-1].children[name])
        del nodes[-1].values[key]
        for name in reversed(names):
            node = nodes.pop()
            if node.children or node.values:
                return
            del nodes[-1].children[name]

    def match_topic(self, topic: str) -> list[T]:
        """The values of all filters that match a topic."""
        found: list[T] = []
        nodes = [self._root]
        hidden = topic.startswith("$")  # from wildcards in front
        for name in topic.split("/"):
            following: list[_Node[T]] = []
            for node in nodes:
                children = node.children
                if not hidden:
                    found += _values(children.get(REST))
                    if (one := children.get(ONE)) is not None:
                        following.append(one)
                if (child := children.get(name)) is not None:
                    following.append(child)
            if not following:
                return found
            nodes, hidden = following, False
        for node in nodes:
            found += node.values.values()
            found += _values(node.children.get(REST))
        return found

    def match_filter(self, filter: str) -> list[T]:
        """The values of all topics that a filter matches."""
        nodes = [self._root]
        hidden = True  # what starts with `$`, from wildcards in front
        for name in filter.split("/"):
            if name == REST:
                return [v for node in nodes for v in _all_below(node, hidden=hidden)]
            if name == ONE:
                nodes = [n for node in nodes for n in node.named_children(hidden=hidden)]
            else:
                nodes = [node.children[name] for node in nodes if name in node.children]
            hidden = False
        return [value for node in nodes for value in node.values.values()]


def _values(node: _Node[T] | None) -> Iterable[T]:
    return () if node is None else node.values.values()


def _all_below(top: _Node[T], *, hidden: bool) -> list[T]:
    """The values of a level and of all levels below it."""
    found = list(top.values.values())
    waiting = list(top.named_children(hidden=hidden))
    while waiting:
        node = waiting.pop()
        found += node.values.values()
        waiting += node.children.values()
    return found


def as_pattern(topic: str) -> str:
    """A topic or filter in the form of broadcasts: `*` for all that follows.

    >>> as_pattern("fleet/+/#")
    'fleet/+/*'
    """
    return topic[:-1] + "*" if topic.endswith("#") else topic
