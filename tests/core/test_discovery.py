from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.rule_errors import breaks
from waystation.core.discovery import (
    ENOUGH_REPLIES,
    EVERYONE,
    FIRST_WAIT_MS,
    LONGEST_WAIT_MS,
    AskRouter,
    Discovery,
    DiscoveryMethod,
    DiscoveryRequest,
    DiscoveryResponse,
    Drop,
    Effect,
    IHave,
    Invalidate,
    Notice,
    SendNotice,
    ToEveryone,
    ToMember,
    ToPhysical,
    Transmit,
    WhoHas,
)
from waystation.core.expiry import NEVER, Expiry
from waystation.core.identity import (
    MAX_CHANGES,
    AddressCache,
    First,
    LogicalAddress,
    Mapping,
    Physical,
    RoundRobin,
    Selection,
    Uuid,
)
from waystation.core.outcome import Reason
from waystation.errors import LocalError

TTL = 10_000
HOSTS = ("10.0.0.2:7800", "10.0.0.3:7800")
DIRECT = [DiscoveryMethod.HOSTS, DiscoveryMethod.ROUTER]  # one packet reaches one member
SHARED = [DiscoveryMethod.MULTICAST, DiscoveryMethod.TUNNEL]  # one packet reaches everyone
ROUTER = b"router"

every_method = pytest.mark.parametrize("method", list(DiscoveryMethod))
asking_method = pytest.mark.parametrize(
    "method", [DiscoveryMethod.MULTICAST, DiscoveryMethod.HOSTS, DiscoveryMethod.ROUTER]
)  # no tunnel


def uuid(number: int) -> Uuid:
    return number.to_bytes(16, "big")


def place(number: int, net: int = 0) -> Physical:
    return f"10.{net}.0.{number}:7800"


def mapping(number: int, *physical: Physical, stamp: int = 0, name: str | None = None) -> Mapping:
    return Mapping(LogicalAddress(uuid(number), name or f"m{number}"), physical, stamp)


ME = mapping(1, place(1))
YOU = mapping(2, place(2))
SHE = mapping(3, place(3))


def a_discovery(
    method: DiscoveryMethod = DiscoveryMethod.MULTICAST,
    *known: Mapping,
    own: Mapping = ME,
    jitter: float = 1.0,
    max_waiting: int = 10_000,
    selection: Selection | None = None,
) -> Discovery[str]:
    cache = AddressCache(own, selection)
    for each in known:
        cache.learn(each)
    hosts = HOSTS if method is DiscoveryMethod.HOSTS else ()
    return Discovery(cache, method, jitter=lambda: jitter, hosts=hosts, max_waiting=max_waiting)


def who_has(method: DiscoveryMethod, wanted: Uuid, asker: Mapping = ME) -> list[Effect[str]]:
    """What goes out to ask for a member."""
    if method is DiscoveryMethod.ROUTER:
        return [AskRouter()]
    if method is DiscoveryMethod.HOSTS:
        return [SendNotice(WhoHas(wanted, asker), ToPhysical(host)) for host in HOSTS]
    return [SendNotice(WhoHas(wanted, asker), EVERYONE)]


def bodies(effects: Iterable[Effect[str]]) -> list[str]:
    """The messages that are sent, in order."""
    return [effect.body for effect in effects if isinstance(effect, Transmit)]


def drops(effects: Iterable[Effect[str]]) -> list[tuple[str, Reason]]:
    """The messages that end here, in order."""
    return [(effect.body, effect.reason) for effect in effects if isinstance(effect, Drop)]


def asks_until(discovery: Discovery[str], end: int) -> list[Expiry]:
    """The instants up to an end at which it asks again."""
    asked = []
    while (now := discovery.wake_at()) <= end:
        if any(isinstance(effect, SendNotice) for effect in discovery.wake(now)):
            asked.append(now)
    return asked


# Several members, and a network between them


class Node:
    def __init__(self, own: Mapping, method: DiscoveryMethod, hosts: Iterable[Physical]) -> None:
        self.discovery: Discovery[str] = Discovery(
            AddressCache(own), method, jitter=lambda: 1.0, hosts=hosts
        )
        self.received: list[str] = []
        self.dropped: list[tuple[str, Reason]] = []

    @property
    def own(self) -> Mapping:
        return self.discovery.cache.own

    @property
    def uuid(self) -> Uuid:
        return self.own.uuid

    def knows(self, other: Node) -> bool:
        known = self.discovery.cache.lookup(other.uuid)
        return known == other.own and str(known.member) == str(other.own.member)

    def has_heard_of(self, other: Node) -> bool:
        return self.discovery.cache.lookup(other.uuid) is not None


class Network:
    """Carries out what members ask for, at once and in order, except between those it has cut."""

    def __init__(self, method: DiscoveryMethod, *numbers: int) -> None:
        self.method = method
        self.hosts = (
            [place(number) for number in numbers] if method is DiscoveryMethod.HOSTS else []
        )
        self.now = 0
        self.nodes: list[Node] = []
        self.router: dict[Uuid, Mapping] = {}
        self.cut: set[tuple[Uuid, Uuid]] = set()
        self.carried: list[tuple[Node, Effect[str]]] = []
        self.sent = 0
        for number in numbers:
            self.add(mapping(number, place(number)))

    def add(self, own: Mapping, hosts: Iterable[Physical] | None = None) -> Node:
        node = Node(own, self.method, self.hosts if hosts is None else hosts)
        self.nodes.append(node)
        return node

    def register(self, node: Node) -> None:
        if self.method in (DiscoveryMethod.ROUTER, DiscoveryMethod.TUNNEL):
            self.router[node.uuid] = node.own

    def start(self, *nodes: Node) -> None:
        for node in nodes:
            self.register(node)
            self.run(node, node.discovery.start())

    def move(self, node: Node, *physical: Physical) -> None:
        effects = node.discovery.move(physical)
        self.register(node)
        self.run(node, effects)

    def close(self, node: Node) -> None:
        self.run(node, node.discovery.close())
        self.nodes.remove(node)
        self.router.pop(node.uuid, None)

    def send(self, sender: Node, to: Uuid, body: str, ttl: Expiry = TTL) -> None:
        self.sent += 1
        self.run(sender, sender.discovery.send(to, body, expiry=self.now + ttl, now=self.now))

    def everybody_sends_to_everybody(self, body: str) -> None:
        for sender in self.nodes:
            for receiver in self.nodes:
                if sender is not receiver:
                    self.send(sender, receiver.uuid, f"{sender.own.member}: {body}")

    def let_pass(self, milliseconds: int) -> None:
        end = self.now + milliseconds
        while (due := min(node.discovery.wake_at() for node in self.nodes)) <= end:
            self.now = max(self.now, int(due))
            for node in self.nodes:
                self.run(node, node.discovery.wake(self.now))
        self.now = end

    def run(self, node: Node, effects: Iterable[Effect[str]]) -> None:
        queue = deque((node, effect) for effect in effects)
        limit = len(self.carried) + 2_000
        while queue:
            sender, effect = queue.popleft()
            self.carried.append((sender, effect))
            assert len(self.carried) < limit, "this goes on for ever"
            if isinstance(effect, AskRouter):
                if (sender.uuid, ROUTER) not in self.cut:
                    members = list(self.router.values())
                    follow = sender.discovery.on_members(members, self.now)
                    queue.extend((sender, each) for each in follow)
            elif isinstance(effect, Drop):
                sender.dropped.append((effect.body, effect.reason))
            else:
                for receiver in self.receivers(sender, effect.to):
                    if (sender.uuid, receiver.uuid) not in self.cut:
                        follow = self.deliver(receiver, effect)
                        queue.extend((receiver, each) for each in follow)

    def deliver(self, receiver: Node, effect: SendNotice | Transmit[str]) -> list[Effect[str]]:
        if isinstance(effect, SendNotice):
            return receiver.discovery.on_notice(effect.notice, self.now)
        receiver.received.append(effect.body)
        return receiver.discovery.on_changes(effect.changes, self.now)

    def receivers(self, sender: Node, to: ToEveryone | ToPhysical | ToMember) -> list[Node]:
        if isinstance(to, ToEveryone):
            return [node for node in self.nodes if node is not sender]
        if isinstance(to, ToMember):
            named = [node for node in self.nodes if node.uuid == to.uuid]
            return [n for n in named if to.physical is None or to.physical in n.own.physical]
        return [node for node in self.nodes if to.physical in node.own.physical]

    def isolate(self, node: Node) -> None:
        for other in self.nodes:
            self.cut |= {(node.uuid, other.uuid), (other.uuid, node.uuid)}
        self.cut.add((node.uuid, ROUTER))

    def told(self, kind: type[Notice]) -> list[tuple[Node, SendNotice]]:
        """Who sent a notice of this kind, and to whom."""
        return [
            (node, effect)
            for node, effect in self.carried
            if isinstance(effect, SendNotice) and isinstance(effect.notice, kind)
        ]

    def converged(self) -> bool:
        return all(one.knows(other) for one in self.nodes for other in self.nodes)


def started(method: DiscoveryMethod, *numbers: int) -> Network:
    net = Network(method, *numbers)
    net.start(*net.nodes)
    net.carried.clear()
    return net


def assert_all_talk_directly(net: Network) -> None:
    """Everybody reaches everybody, and nobody has to ask for anybody."""
    net.carried.clear()
    net.everybody_sends_to_everybody("hello")
    for receiver in net.nodes:
        assert receiver.received == [f"{n.own.member}: hello" for n in net.nodes if n != receiver]
    assert all(isinstance(effect, Transmit) for _, effect in net.carried)


# Start-up, as the document tells it


@pytest.mark.rule("LA-7")
@pytest.mark.rule("LA-9")
def test_udp_startup() -> None:
    net = started(DiscoveryMethod.MULTICAST, 1, 2)
    joiner = net.add(mapping(3, place(3)))

    # The joiner multicasts a request with its UUID, name and physical addresses.
    effects = joiner.discovery.start()
    assert effects == [SendNotice(DiscoveryRequest(joiner.own), EVERYONE)]
    # The receivers learn it, and each answers the joiner alone, with the same of its own.
    net.run(joiner, effects)
    assert net.told(DiscoveryResponse) == [
        (node, SendNotice(DiscoveryResponse(node.own), ToMember(joiner.uuid, place(3))))
        for node in net.nodes[:2]
    ]
    # The joiner learns the answers.
    assert net.converged()
    assert_all_talk_directly(net)


@pytest.mark.rule("LA-7")
@pytest.mark.rule("LA-9")
def test_list_of_physical_addresses_startup() -> None:
    net = started(DiscoveryMethod.HOSTS, 1, 2)
    joiner = net.add(mapping(3, place(3)), hosts=[place(number) for number in (1, 2, 3)])

    # The request goes to each physical address of the list, past the cache, which is empty.
    effects = joiner.discovery.start()
    assert joiner.discovery.cache.mappings() == [joiner.own]
    assert effects == [
        SendNotice(DiscoveryRequest(joiner.own), ToPhysical(place(number))) for number in (1, 2, 3)
    ]
    # The answer goes back to a UUID, which the receiver translates again. Nobody answers itself.
    net.run(joiner, effects)
    assert net.told(DiscoveryResponse) == [
        (node, SendNotice(DiscoveryResponse(node.own), ToMember(joiner.uuid, place(3))))
        for node in net.nodes[:2]
    ]
    assert net.converged()
    assert_all_talk_directly(net)


@pytest.mark.rule("LA-7")
@pytest.mark.rule("LA-9")
def test_gossip_router_and_tcp_startup() -> None:
    net = started(DiscoveryMethod.ROUTER, 1, 2)
    joiner = net.add(mapping(3, place(3)))
    net.register(joiner)

    # The joiner asks the router for the members.
    assert joiner.discovery.start() == [AskRouter()]
    # It learns them, the own entry aside, and sends a request to each of them directly.
    effects = joiner.discovery.on_members(list(net.router.values()), now=0)
    assert all(joiner.knows(node) for node in net.nodes)
    assert effects == [
        SendNotice(DiscoveryRequest(joiner.own), ToPhysical(place(number))) for number in (1, 2)
    ]
    # The rest is the same as for UDP.
    net.run(joiner, effects)
    assert len(net.told(DiscoveryResponse)) == 2
    assert net.converged()
    assert_all_talk_directly(net)


@pytest.mark.rule("LA-7")
@pytest.mark.rule("LA-9")
def test_tunnel_startup() -> None:
    net = Network(DiscoveryMethod.TUNNEL)
    one, two, joiner = (net.add(mapping(number)) for number in (1, 2, 3))  # no physical address
    net.start(one, two)
    net.carried.clear()

    # The request goes through the router, and so does everything else, without physical addresses.
    effects = joiner.discovery.start()
    assert effects == [SendNotice(DiscoveryRequest(joiner.own), EVERYONE)]
    net.run(joiner, effects)
    assert net.told(DiscoveryResponse) == [
        (node, SendNotice(DiscoveryResponse(node.own), ToMember(joiner.uuid, None)))
        for node in (one, two)
    ]
    assert net.converged()
    assert_all_talk_directly(net)


@pytest.mark.rule("LA-9")
def test_in_the_tunnel_physical_addresses_are_ignored() -> None:
    discovery = a_discovery(DiscoveryMethod.TUNNEL, YOU)
    [effect] = discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    assert isinstance(effect, Transmit)
    assert effect.to == ToMember(YOU.uuid, None)
    assert discovery.on_members([SHE], now=0) == []  # learnt, but nobody is asked directly
    assert discovery.cache.lookup(SHE.uuid) == SHE


@pytest.mark.rule("LA-9")
def test_a_list_of_physical_addresses_must_not_be_empty() -> None:
    with pytest.raises(LocalError) as caught:
        Discovery(AddressCache(ME), DiscoveryMethod.HOSTS, jitter=lambda: 1.0)
    assert caught.value.rule == "LA-9"
    assert "needs at least one" in str(caught.value)


@pytest.mark.rule("LA-9")
def test_a_member_is_asked_once_however_often_the_router_names_it() -> None:
    discovery = a_discovery(DiscoveryMethod.ROUTER)
    two_places = mapping(2, place(2), place(2, net=1))
    request = DiscoveryRequest(ME)
    assert discovery.on_members([ME, two_places, two_places], now=0) == [
        SendNotice(request, ToPhysical(place(2))),
        SendNotice(request, ToPhysical(place(2, net=1))),
    ]
    assert discovery.on_members([ME, two_places], now=0) == []


@pytest.mark.rule("LA-8")
@pytest.mark.rule("LA-9")
def test_a_router_does_not_bring_back_who_said_goodbye() -> None:
    discovery = a_discovery(DiscoveryMethod.ROUTER, YOU)
    discovery.on_notice(Invalidate(YOU.uuid), now=0)
    assert discovery.on_members([YOU], now=1) == []
    assert discovery.cache.lookup(YOU.uuid) is None


@pytest.mark.rule("LA-6")
@pytest.mark.rule("LA-9")
def test_members_that_no_list_names_find_each_other_through_one_that_is_named() -> None:
    net = Network(DiscoveryMethod.HOSTS)
    named, one, two = (net.add(mapping(number, place(number)), [place(1)]) for number in (1, 2, 3))
    net.start(named, one, two)
    net.everybody_sends_to_everybody("hello")
    net.let_pass(TTL)
    assert one.received == ["m1: hello", "m3: hello"]
    assert two.received == ["m1: hello", "m2: hello"]


@every_method
@pytest.mark.rule("LA-6")
def test_only_those_on_a_list_answer_for_others(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method, SHE)
    effects = discovery.on_notice(WhoHas(SHE.uuid, YOU), now=0)
    answer = SendNotice(IHave(SHE, hearsay=True), ToMember(YOU.uuid, place(2)))
    assert effects == ([answer] if method is DiscoveryMethod.HOSTS else [])
    assert discovery.on_notice(WhoHas(uuid(9), YOU), now=0) == []  # who knows
    discovery.on_notice(IHave(mapping(3, stamp=1)), now=0)
    assert discovery.on_notice(WhoHas(SHE.uuid, YOU), now=0) == []  # she is nowhere


@pytest.mark.rule("LA-6")
@pytest.mark.rule("LA-7")
def test_an_answer_by_others_releases_the_queue_but_never_outdoes_the_member_itself() -> None:
    discovery = a_discovery(DiscoveryMethod.HOSTS)
    discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    assert bodies(discovery.on_notice(IHave(YOU, hearsay=True), now=1)) == ["hello"]
    discovery.on_notice(IHave(mapping(2, place(2, net=1))), now=2)
    discovery.on_notice(IHave(YOU, hearsay=True), now=3)
    assert discovery.cache.select(YOU.uuid) == place(2, net=1)


@pytest.mark.rule("LA-7")
@pytest.mark.parametrize("kind", [DiscoveryRequest, DiscoveryResponse, IHave])
def test_requests_and_responses_carry_the_mapping_and_the_newer_one_stays(
    kind: type[DiscoveryRequest | DiscoveryResponse | IHave],
) -> None:
    discovery = a_discovery()
    for stamp, expected in [(1, 1), (3, 3), (2, 3)]:
        discovery.on_notice(kind(mapping(2, place(2, net=stamp), stamp=stamp)), now=0)
        known = discovery.cache.lookup(uuid(2))
        assert known == mapping(2, place(2, net=expected), stamp=expected)
        assert str(known.member) == "m2"


@pytest.mark.rule("LA-7")
def test_nobody_answers_itself_or_who_cannot_be_reached() -> None:
    discovery = a_discovery()
    assert discovery.on_notice(DiscoveryRequest(ME), now=0) == []
    assert discovery.on_notice(WhoHas(ME.uuid, ME), now=0) == []
    assert discovery.on_notice(DiscoveryRequest(mapping(2)), now=0) == []
    assert discovery.on_notice(WhoHas(ME.uuid, mapping(2)), now=0) == []


# Sending with no physical address available


@asking_method
@pytest.mark.rule("LA-6")
def test_sending_with_no_physical_address_available_step_by_step(method: DiscoveryMethod) -> None:
    net = Network(method, 1, 2, 3)
    me, you, she = net.nodes
    for node in net.nodes:
        net.register(node)

    # The message is queued, and WHO-HAS goes out: by multicast, to each host, or to the router.
    effects = me.discovery.send(you.uuid, "hello", expiry=TTL, now=0)
    assert me.discovery.waiting == 1
    assert (
        effects
        == {
            DiscoveryMethod.MULTICAST: [SendNotice(WhoHas(you.uuid, me.own), EVERYONE)],
            DiscoveryMethod.HOSTS: [
                SendNotice(WhoHas(you.uuid, me.own), ToPhysical(host)) for host in net.hosts
            ],
            DiscoveryMethod.ROUTER: [AskRouter()],
        }[method]
    )
    # The one asked for answers with I-HAVE and nobody else does; a router looks into its table.
    net.run(me, effects)
    answers = (
        []
        if method is DiscoveryMethod.ROUTER
        else [(you, SendNotice(IHave(you.own), ToMember(me.uuid, place(1))))]
    )
    assert net.told(IHave) == answers
    # The sender learns the answer, as who was asked learns of the sender.
    assert me.knows(you)
    assert you.knows(me)
    assert she.knows(me)
    # The message is sent.
    assert me.discovery.waiting == 0
    assert you.received == ["hello"]
    assert she.received == []


@asking_method
@pytest.mark.rule("LA-6")
def test_who_has_goes_out_once_however_many_messages_wait(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method)
    effects = [discovery.send(uuid(9), str(n), expiry=TTL, now=0) for n in range(5)]
    assert effects == [who_has(method, uuid(9)), [], [], [], []]
    assert discovery.waiting == 5


@pytest.mark.rule("LA-6")
def test_i_have_releases_in_order_what_waits_for_that_member() -> None:
    discovery = a_discovery()
    for number, body in [(2, "a"), (3, "x"), (2, "b"), (2, "c")]:
        discovery.send(uuid(number), body, expiry=TTL, now=0)
    released = discovery.on_notice(IHave(YOU), now=1)
    assert released == [Transmit(body, ToMember(YOU.uuid, place(2))) for body in "abc"]
    assert discovery.waiting == 1
    assert bodies(discovery.send(YOU.uuid, "d", expiry=TTL, now=1)) == ["d"]
    assert bodies(discovery.on_notice(IHave(SHE), now=1)) == ["x"]


@pytest.mark.rule("LA-6")
@pytest.mark.parametrize("notice", [DiscoveryRequest(YOU), WhoHas(uuid(9), YOU), IHave(YOU)])
def test_whatever_tells_the_address_releases_the_queue(notice: Notice) -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    assert bodies(discovery.on_notice(notice, now=1)) == ["hello"]


@pytest.mark.rule("LA-5")
@pytest.mark.rule("LA-6")
def test_what_others_or_a_router_tell_releases_the_queue_too() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    discovery.send(SHE.uuid, "hello you", expiry=TTL, now=0)
    assert bodies(discovery.on_changes([YOU], now=1)) == ["hello"]
    assert bodies(discovery.on_members([SHE], now=1)) == ["hello you"]


@pytest.mark.rule("LA-6")
def test_an_answer_without_an_address_releases_nothing() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    assert discovery.on_notice(IHave(mapping(2, stamp=1)), now=1) == []
    assert discovery.send(YOU.uuid, "hello again", expiry=TTL, now=1) == []
    assert discovery.waiting == 2


@every_method
@pytest.mark.rule("LA-6")
@pytest.mark.rule("LA-10")
def test_a_node_without_an_interface_still_reaches_itself(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method)
    discovery.move([])
    [before] = discovery.send(ME.uuid, "a", expiry=TTL, now=0)
    discovery.move([place(1, net=1)])
    [after] = discovery.send(ME.uuid, "b", expiry=TTL, now=1)
    assert before == Transmit("a", ToMember(ME.uuid, None))
    assert bodies([before, after]) == ["a", "b"]


@pytest.mark.rule("LA-6")
def test_the_queue_is_bounded_and_the_oldest_is_dropped() -> None:
    discovery = a_discovery(max_waiting=3)
    for number, body in [(2, "a"), (3, "b"), (2, "c")]:
        assert drops(discovery.send(uuid(number), body, expiry=TTL, now=0)) == []
    effects = discovery.send(uuid(3), "d", expiry=TTL, now=0)
    assert effects == [Drop("a", uuid(2), Reason.QUEUE_FULL)]
    assert discovery.waiting == 3
    assert bodies(discovery.on_notice(IHave(YOU), now=1)) == ["c"]
    assert bodies(discovery.on_notice(IHave(SHE), now=1)) == ["b", "d"]


@pytest.mark.rule("LA-6")
def test_a_queue_of_no_length_drops_everything_and_searches_for_nobody() -> None:
    discovery = a_discovery(max_waiting=0)
    effects = discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    assert drops(effects) == [("hello", Reason.QUEUE_FULL)]
    assert discovery.waiting == 0
    assert discovery.wake_at() == NEVER


@pytest.mark.rule("LA-6")
def test_each_message_expires_by_its_own_ttl() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "late", expiry=200, now=0)
    discovery.send(YOU.uuid, "early", expiry=100, now=0)
    assert discovery.wake_at() == 100
    assert discovery.wake(99) == []
    assert discovery.wake(100) == [Drop("early", YOU.uuid, Reason.EXPIRED)]
    assert discovery.wake(100) == []
    assert discovery.wake(200) == [Drop("late", YOU.uuid, Reason.EXPIRED)]
    assert discovery.wake_at() == NEVER


@pytest.mark.rule("LA-6")
def test_what_expired_before_the_answer_came_is_not_sent() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "short", expiry=100, now=0)
    discovery.send(YOU.uuid, "long", expiry=101, now=0)
    assert discovery.on_notice(IHave(YOU), now=100) == [
        Drop("short", YOU.uuid, Reason.EXPIRED),
        Transmit("long", ToMember(YOU.uuid, place(2))),
    ]


@every_method
@pytest.mark.rule("LA-6")
def test_an_expired_message_is_never_sent(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method, YOU)
    expected = [Drop("hello", YOU.uuid, Reason.EXPIRED)]
    assert discovery.send(YOU.uuid, "hello", expiry=100, now=100) == expected
    assert discovery.send(YOU.uuid, "hello", expiry=100, now=101) == expected


@pytest.mark.rule("LA-6")
@pytest.mark.parametrize("method", DIRECT)
def test_a_message_to_nobody_or_twice_to_somebody(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method, YOU)
    for members in ([], [ME.uuid]):
        effects = discovery.send_all(members, "hello", expiry=TTL, now=0)
        assert effects == [Drop("hello", None, Reason.NO_ROUTE)]
    assert bodies(discovery.send_all([YOU.uuid] * 2, "hello", expiry=TTL, now=0)) == ["hello"]


def test_what_makes_no_discovery_is_refused_by_name_and_rule() -> None:
    cache = AddressCache(ME)
    with pytest.raises(
        LocalError, match=r"'10.0.0.2:7800' is a single physical address", check=breaks("LA-3")
    ):
        Discovery(cache, DiscoveryMethod.HOSTS, jitter=lambda: 0.0, hosts="10.0.0.2:7800")
    with pytest.raises(LocalError, match=r"invalid max_waiting -1", check=breaks("LA-6")):
        Discovery(cache, DiscoveryMethod.MULTICAST, jitter=lambda: 0.0, max_waiting=-1)
    with pytest.raises(LocalError, match=r"'p' is a single physical address", check=breaks("LA-3")):
        a_discovery().move("p")


@every_method
@pytest.mark.rule("LA-6")
def test_an_expired_message_is_never_sent_to_all(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method, YOU)
    effects = discovery.send_all([YOU.uuid, SHE.uuid], "hello", expiry=100, now=100)
    assert effects == [Drop("hello", None, Reason.EXPIRED)]


@every_method
@pytest.mark.rule("LA-6")
@pytest.mark.parametrize("expiry", [-1, 1.5, True, float("nan")])
def test_an_expiry_is_an_instant(method: DiscoveryMethod, expiry: float) -> None:
    discovery = a_discovery(method, YOU)
    with pytest.raises(LocalError) as one:
        discovery.send(YOU.uuid, "hello", expiry=expiry, now=0)
    with pytest.raises(LocalError) as all_of_them:
        discovery.send_all([YOU.uuid], "hello", expiry=expiry, now=0)
    for caught in (one, all_of_them):
        assert caught.value.rule == "LA-6"
        assert f"expiry {expiry!r}" in str(caught.value)


@pytest.mark.rule("LA-6")
@pytest.mark.parametrize("method", DIRECT)
def test_a_message_to_all_waits_for_the_members_that_are_missing(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method, YOU)
    members = [ME.uuid, SHE.uuid, YOU.uuid]
    effects = discovery.send_all(members, "hello", expiry=TTL, now=0)
    to_you = Transmit("hello", ToMember(YOU.uuid, place(2)))
    assert effects == [*who_has(method, SHE.uuid), to_you]
    assert bodies(discovery.on_notice(IHave(SHE), now=1)) == ["hello"]


@pytest.mark.rule("LA-6")
@pytest.mark.parametrize("method", SHARED)
def test_where_one_packet_reaches_everyone_nobody_waits(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method, YOU)
    members = [ME.uuid, SHE.uuid, YOU.uuid]
    [effect] = discovery.send_all(members, "hello", expiry=TTL, now=0)
    assert effect == Transmit("hello", EVERYONE, (ME, YOU))
    assert discovery.waiting == 0


# Asking again


@pytest.mark.rule("LA-6")
def test_without_an_answer_it_asks_again_with_growing_waits_up_to_a_limit() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "hello", expiry=60_000, now=0)
    waits = [later - before for before, later in pairwise([0, *asks_until(discovery, 60_000)])]
    assert waits == [250, 500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000, 8_000, 8_000, 8_000]
    assert (waits[0], waits[-1]) == (FIRST_WAIT_MS, LONGEST_WAIT_MS)


@pytest.mark.rule("LA-6")
def test_it_asks_until_the_last_message_expires_and_no_longer() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "a", expiry=600, now=0)
    discovery.send(YOU.uuid, "b", expiry=1_750, now=0)  # when it would ask for the fourth time
    assert asks_until(discovery, 10_000) == [250, 750]
    assert discovery.waiting == 0


@pytest.mark.rule("LA-6")
def test_for_what_never_expires_it_asks_for_ever() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "hello", expiry=NEVER, now=0)
    asked = asks_until(discovery, 1_000_000)
    assert len(asked) > 100
    assert asked[-1] - asked[-2] == LONGEST_WAIT_MS
    assert bodies(discovery.on_notice(IHave(YOU), now=1_000_000)) == ["hello"]
    assert discovery.wake_at() == NEVER


@pytest.mark.rule("LA-6")
def test_more_messages_neither_hasten_nor_delay_the_asking() -> None:
    discovery = a_discovery()
    for now in range(0, 250, 50):
        discovery.send(YOU.uuid, "hello", expiry=TTL, now=now)
    assert asks_until(discovery, 2_000) == [250, 750, 1_750]


@pytest.mark.rule("LA-6")
@pytest.mark.parametrize(("jitter", "expected"), [(0.0, 125), (0.5, 187), (1.0, 250)])
def test_waits_are_spread_so_that_members_do_not_ask_in_step(jitter: float, expected: int) -> None:
    discovery = a_discovery(jitter=jitter)
    discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    assert discovery.wake_at() == expected


@pytest.mark.rule("LA-6")
@asking_method
def test_it_asks_again_the_way_it_asked_first(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method)
    first = discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    assert discovery.wake(250) == first == who_has(method, YOU.uuid)


@pytest.mark.rule("LA-6")
@pytest.mark.rule("LA-10")
def test_it_asks_again_with_its_present_address() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    discovery.move([place(1, net=1)])
    moved = mapping(1, place(1, net=1), stamp=1)
    assert discovery.wake(250) == who_has(DiscoveryMethod.MULTICAST, YOU.uuid, moved)


@pytest.mark.rule("LA-6")
def test_a_late_wake_asks_once_for_each_who_is_missing() -> None:
    discovery = a_discovery()
    for wanted in (YOU, SHE):
        discovery.send(wanted.uuid, "hello", expiry=NEVER, now=0)
    asked = discovery.wake(100_000)
    expected = who_has(DiscoveryMethod.MULTICAST, YOU.uuid) + who_has(
        DiscoveryMethod.MULTICAST, SHE.uuid
    )
    assert sorted(asked, key=repr) == sorted(expected, key=repr)
    assert discovery.wake_at() == 100_000 + 2 * FIRST_WAIT_MS


@pytest.mark.rule("LA-6")
def test_a_late_wake_does_not_ask_for_whom_nothing_waits_any_more() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "hello", expiry=300, now=0)
    assert discovery.wake(300) == [Drop("hello", YOU.uuid, Reason.EXPIRED)]
    assert discovery.wake_at() == NEVER


@pytest.mark.rule("LA-6")
def test_there_is_no_last_alarm_to_wait_for() -> None:
    discovery = a_discovery()
    assert discovery.wake(discovery.wake_at()) == []
    discovery.send(YOU.uuid, "hello", expiry=NEVER, now=0)
    assert discovery.wake_at() == FIRST_WAIT_MS


@pytest.mark.rule("LA-6")
def test_a_search_taken_up_again_at_the_same_instant_asks_once() -> None:
    discovery = a_discovery(max_waiting=1)
    for wanted in (YOU, SHE, YOU):  # each message pushes out the one before, and its search
        discovery.send(wanted.uuid, "hello", expiry=TTL, now=0)
    assert discovery.wake(FIRST_WAIT_MS) == who_has(DiscoveryMethod.MULTICAST, YOU.uuid)
    assert discovery.wake_at() == FIRST_WAIT_MS + 2 * FIRST_WAIT_MS


@pytest.mark.rule("LA-6")
def test_alarms_of_what_no_longer_waits_are_cleared_away_and_the_others_ring() -> None:
    discovery = a_discovery()
    patient = [60_000 - n * n % 997 for n in range(40)]
    for n, expiry in enumerate(patient):
        discovery.send(SHE.uuid, f"patience {expiry}", expiry=expiry, now=n)
        for hasty in range(200):  # one and the same member, at one and the same instant
            discovery.send(uuid(100 + n), "hello", expiry=1_000 * hasty + 1_000, now=n)
            discovery.on_notice(Invalidate(uuid(100 + n)), now=n)
        assert len(discovery._timers) <= 64 + 2 * (discovery.waiting + 4)
    dropped = []
    while (now := discovery.wake_at()) != NEVER:
        dropped += [(body, now) for body, _ in drops(discovery.wake(now))]
    assert dropped == [(f"patience {expiry}", expiry) for expiry in sorted(patient)]


# Goodbye


@every_method
@pytest.mark.rule("LA-8")
def test_closing_tells_everybody_and_everybody_forgets(method: DiscoveryMethod) -> None:
    net = started(method, 1, 2, 3)
    leaver, *others = net.nodes
    net.close(leaver)
    assert {type(effect) for _, effect in net.carried} == {SendNotice}
    assert len(net.told(Invalidate)) == (1 if method in SHARED else 2)
    assert not any(node.has_heard_of(leaver) for node in others)
    assert net.converged()


@every_method
@pytest.mark.rule("LA-8")
def test_who_was_away_when_a_member_said_goodbye_does_not_bring_it_back(
    method: DiscoveryMethod,
) -> None:
    net = started(method, 1, 2, 3)
    leaver, one, away = net.nodes
    net.isolate(away)
    net.close(leaver)
    net.cut.clear()
    net.everybody_sends_to_everybody("hello")
    assert not one.has_heard_of(leaver)


@pytest.mark.rule("LA-8")
def test_messages_for_a_member_that_says_goodbye_are_dropped() -> None:
    discovery = a_discovery()
    for number, body in [(2, "a"), (3, "x"), (2, "b")]:
        discovery.send(uuid(number), body, expiry=TTL, now=0)
    assert discovery.on_notice(Invalidate(YOU.uuid), now=1) == [
        Drop("a", YOU.uuid, Reason.NO_ROUTE),
        Drop("b", YOU.uuid, Reason.NO_ROUTE),
    ]
    assert discovery.on_notice(Invalidate(YOU.uuid), now=1) == []
    assert discovery.waiting == 1


@pytest.mark.rule("LA-8")
def test_closing_drops_what_still_waits() -> None:
    discovery = a_discovery(DiscoveryMethod.HOSTS, SHE)
    for body in "ab":
        discovery.send(YOU.uuid, body, expiry=TTL, now=0)
    assert discovery.close() == [
        Drop("a", YOU.uuid, Reason.TRANSPORT_DOWN),
        Drop("b", YOU.uuid, Reason.TRANSPORT_DOWN),
        SendNotice(Invalidate(ME.uuid), ToMember(SHE.uuid, place(3))),
        SendNotice(Invalidate(ME.uuid), ToPhysical(place(2))),  # on the list, and may know us
    ]
    assert discovery.waiting == 0
    assert discovery.wake_at() == NEVER
    assert discovery.wake(TTL) == []
    assert discovery.on_notice(IHave(YOU), now=1) == []  # an answer too late


@pytest.mark.rule("LA-8")
def test_nobody_makes_a_member_forget_itself() -> None:
    discovery = a_discovery()
    assert discovery.on_notice(Invalidate(ME.uuid), now=0) == []
    assert discovery.cache.lookup(ME.uuid) == ME


# Identity is not a place


@every_method
@pytest.mark.rule("LA-2")
def test_a_restarted_member_is_a_different_member(method: DiscoveryMethod) -> None:
    net = started(method, 1, 2)
    me, before = net.nodes
    net.nodes.remove(before)  # it dies without a word
    after = net.add(mapping(22, *before.own.physical, name=str(before.own.member)))
    net.start(after)
    assert after.own.member != before.own.member
    assert me.knows(after)
    assert me.has_heard_of(before)
    net.run(after, [SendNotice(Invalidate(before.uuid), EVERYONE)])
    assert me.knows(after)
    assert not me.has_heard_of(before)
    net.send(me, after.uuid, "hello")
    assert after.received == ["hello"]


@pytest.mark.rule("LA-2")
def test_what_waits_for_a_member_is_not_for_its_reincarnation() -> None:
    discovery = a_discovery()
    discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
    assert discovery.on_notice(IHave(mapping(22, place(2), name="m2")), now=1) == []
    assert discovery.waiting == 1


@every_method
@pytest.mark.rule("LA-10")
def test_a_member_that_moves_keeps_its_identity_and_its_messages(method: DiscoveryMethod) -> None:
    net = started(method, 1, 2, 3)
    mover, one, _ = net.nodes
    name_and_uuid = (str(mover.own.member), mover.uuid)
    net.send(one, mover.uuid, "before")
    net.move(mover, place(1, net=1), place(1, net=2))
    net.send(one, mover.uuid, "after")
    assert (str(mover.own.member), mover.uuid) == name_and_uuid
    assert net.converged()
    assert mover.received == ["before", "after"]


@pytest.mark.rule("LA-4")
@pytest.mark.rule("LA-10")
@pytest.mark.parametrize("method", DIRECT)
def test_when_an_interface_is_lost_traffic_goes_on_over_the_other(method: DiscoveryMethod) -> None:
    net = started(method, 1, 2)
    me, you = net.nodes
    net.move(you, place(2), place(2, net=1))
    net.send(me, you.uuid, "a")
    me.discovery.failed(you.uuid, place(2))  # noticed here first
    [effect] = me.discovery.send(you.uuid, "b", expiry=TTL, now=0)
    assert isinstance(effect, Transmit)
    assert effect.to == ToMember(you.uuid, place(2, net=1))
    net.run(me, [effect])
    net.move(you, place(2, net=1))  # and then told by the member itself
    net.send(me, you.uuid, "c")
    assert you.received == ["a", "b", "c"]
    assert net.converged()


@pytest.mark.rule("LA-4")
def test_round_robin_sends_to_each_address_in_turn() -> None:
    places = place(2), place(2, net=1), place(2, net=2)
    discovery = a_discovery(DiscoveryMethod.MULTICAST, mapping(2, *places), selection=RoundRobin())
    used = []
    for _ in range(6):
        [effect] = discovery.send(uuid(2), "hello", expiry=TTL, now=0)
        assert isinstance(effect, Transmit)
        assert isinstance(effect.to, ToMember)
        used.append(effect.to.physical)
    assert used == [*places, *places]


@pytest.mark.rule("LA-11")
def test_a_request_that_arrives_over_every_interface_comes_from_one_member() -> None:
    discovery = a_discovery()
    sender = mapping(2, place(2), place(2, net=1))
    for _ in range(3):  # from whatever source address the network gave each copy
        [answer] = discovery.on_notice(DiscoveryRequest(sender), now=0)
        assert answer == SendNotice(DiscoveryResponse(ME), ToMember(uuid(2), place(2)))
    assert discovery.cache.mappings() == [ME, sender]


@pytest.mark.rule("LA-11")
def test_members_behind_one_translated_address_are_still_two() -> None:
    gateway = "203.0.113.1:7800"
    discovery = a_discovery()
    for number in (2, 3):
        discovery.on_notice(DiscoveryRequest(mapping(number, gateway)), now=0)
    discovery.on_notice(Invalidate(uuid(2)), now=1)
    assert discovery.cache.mappings() == [ME, mapping(3, gateway)]


@pytest.mark.rule("LA-11")
def test_an_answer_goes_where_the_asker_says_it_is() -> None:
    discovery = a_discovery()
    asker = mapping(2, "198.51.100.7:7800")
    expected = [SendNotice(IHave(ME), ToMember(uuid(2), "198.51.100.7:7800"))]
    assert discovery.on_notice(WhoHas(ME.uuid, asker), now=0) == expected


# News that travel with messages


@every_method
@pytest.mark.rule("LA-5")
def test_everybody_we_send_to_hears_a_change_with_the_next_message(method: DiscoveryMethod) -> None:
    net = started(method, 1, 2, 3, 4)
    me, one, two, three = net.nodes
    net.isolate(me)
    net.move(me, place(1), place(1, net=1))  # and nobody hears it
    net.cut.clear()
    net.send(me, one.uuid, "hello")
    assert [node.knows(me) for node in (one, two, three)] == [True, False, False]
    net.send(one, two.uuid, "hello")  # it travels on
    assert [node.knows(me) for node in (one, two, three)] == [True, True, False]
    net.send(me, three.uuid, "hello")
    assert net.converged()


@pytest.mark.rule("LA-5")
@pytest.mark.parametrize("method", SHARED)
def test_a_message_to_all_carries_the_change_to_all(method: DiscoveryMethod) -> None:
    net = started(method, 1, 2, 3)
    me = net.nodes[0]
    net.isolate(me)
    net.move(me, place(1, net=1))
    net.cut.clear()
    net.run(me, me.discovery.send_all([], "hello", expiry=TTL, now=0))
    assert net.converged()


@pytest.mark.rule("LA-5")
def test_changes_are_told_once_each_and_a_limited_number_at_a_time() -> None:
    discovery = a_discovery(DiscoveryMethod.MULTICAST, YOU)
    news = [mapping(number, place(number)) for number in range(100, 100 + MAX_CHANGES + 5)]
    for each in news:
        discovery.on_notice(DiscoveryResponse(each), now=0)
    told = []
    for _ in range(3):
        [effect] = discovery.send(YOU.uuid, "hello", expiry=TTL, now=0)
        assert isinstance(effect, Transmit)
        told.append(list(effect.changes))
    assert told == [news[:MAX_CHANGES], news[MAX_CHANGES:], []]


@pytest.mark.rule("LA-5")
def test_messages_that_waited_carry_a_change_once() -> None:
    discovery = a_discovery()
    for body in "ab":
        discovery.send(YOU.uuid, body, expiry=TTL, now=0)
    discovery.on_changes([mapping(2, stamp=1)], now=1)  # known by now, but not where it is
    discovery.on_notice(DiscoveryResponse(SHE), now=1)
    released = discovery.on_notice(IHave(mapping(2, place(2), stamp=2)), now=2)
    to_you = ToMember(YOU.uuid, place(2))
    assert released == [Transmit("a", to_you, (SHE,)), Transmit("b", to_you)]


@every_method
@pytest.mark.rule("LA-5")
def test_members_that_contradict_each_other_agree_on_the_newest_and_fall_silent(
    method: DiscoveryMethod,
) -> None:
    net = started(method, 1, 2, 3, 4)
    mover, one, two, three = net.nodes
    for witness, second in [(one, 1), (two, 2), (one, 1)]:  # there and back again
        net.cut = {(mover.uuid, other.uuid) for other in net.nodes if other is not witness}
        net.move(mover, place(1), place(1, net=second))
    net.isolate(mover)
    for _ in range(4):
        net.carried.clear()
        net.everybody_sends_to_everybody("hello")
    assert all(node.knows(mover) for node in (one, two, three))
    assert not any(e.changes for _, e in net.carried if isinstance(e, Transmit))


# Partitions and merges


@pytest.mark.rule("LA-6")
@asking_method
def test_messages_wait_out_a_partition_and_arrive_in_order(method: DiscoveryMethod) -> None:
    net = Network(method, 1, 2, 3)
    me, you, _ = net.nodes
    net.isolate(me)
    net.start(*net.nodes)
    for body in "abc":
        net.send(me, you.uuid, body)
        net.let_pass(1_000)
    net.send(me, you.uuid, "too short", ttl=500)
    net.let_pass(1_000)
    assert you.received == []
    net.cut.clear()
    net.let_pass(4_000)
    assert you.received == ["a", "b", "c"]
    assert me.dropped == [("too short", Reason.EXPIRED)]


NODES = st.integers(0, 3)
EVENTS = st.one_of(
    st.tuples(st.just("cut"), NODES, NODES),
    st.tuples(st.just("heal"), NODES, NODES),
    st.tuples(st.just("router"), NODES, st.booleans()),
    st.tuples(st.just("move"), NODES, st.integers(0, 2)),
    st.tuples(st.just("start"), NODES, st.none()),
    st.tuples(st.just("send"), NODES, NODES),
    st.tuples(st.just("pass"), st.sampled_from([0, 1, 250, 5_000]), st.none()),
)


def happen(net: Network, kind: str, first: int, second: int | None) -> None:
    if kind == "pass":
        net.let_pass(first)
        return
    node, other = net.nodes[first], net.nodes[second or 0]
    if kind == "cut":
        net.cut.add((node.uuid, other.uuid))
    elif kind == "heal":
        net.cut.discard((node.uuid, other.uuid))
    elif kind == "router":
        (net.cut.add if second else net.cut.discard)((node.uuid, ROUTER))
    elif kind == "move":
        physical = [place(first + 1), place(first + 1, net=second or 0)]
        net.move(node, *physical[: 1 + bool(second)])
    elif kind == "start":
        net.start(node)
    elif node is not other:
        net.send(node, other.uuid, f"{first} {net.sent:06}")


@every_method
@pytest.mark.rule("LA-7")
@pytest.mark.rule("LA-9")
@pytest.mark.rule("LA-10")
@given(
    events=st.lists(EVENTS, max_size=30),
    cut=st.sets(st.tuples(NODES, NODES)),
    moves=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_after_a_partition_all_agree_once_each_has_moved_or_looked_around(
    method: DiscoveryMethod,
    events: list[tuple[str, int, int | None]],
    cut: set[tuple[int, int]],
    moves: list[bool],
) -> None:
    net = Network(method, 1, 2, 3, 4)
    net.cut = {(net.nodes[a].uuid, net.nodes[b].uuid) for a, b in cut}
    net.start(*net.nodes)
    for kind, first, second in events:
        happen(net, kind, first, second)
    net.cut.clear()
    for node, moves_too in zip(net.nodes, moves, strict=True):
        if moves_too:
            net.move(node, node.own.physical[0], place(9, net=9))
        if not moves_too or method in DIRECT:
            net.start(node)
    assert net.converged()
    net.let_pass(TTL)
    assert all(node.discovery.waiting == 0 for node in net.nodes)
    for receiver in net.nodes:
        for sender in "0123":
            heard = [body for body in receiver.received if body.startswith(sender)]
            assert heard == sorted(set(heard))


# Discovery beside a slow and obvious one


SPEAKERS = st.integers(1, 5)  # 1 is ourselves
TTLS = st.sampled_from([0, 1, 250, 1_000, 20_000, NEVER])
STATEMENTS = st.builds(
    # The statements of a member in their order: the third says that it is nowhere, the fourth what
    # the first said.
    lambda number, stamp: mapping(
        number,
        *((place(number),), (place(number, 2), place(number)), (), (place(number),))[stamp],
        stamp=stamp,
    ),
    SPEAKERS,
    st.integers(0, 3),
)
MAX_WAITING = 4
AGE_MS = 1_000


class Oracle:
    """The rules of discovery with plain lists: each method returns the effects that must follow."""

    def __init__(self, method: DiscoveryMethod) -> None:
        self.method = method
        self.now = 0
        self.own = ME
        self.known = {ME.uuid: ME}
        self.gone: dict[Uuid, int] = {}
        # Whose changes each member has yet to hear, the longest known first; None is "all".
        self.unheard: dict[Uuid | None, list[Uuid]] = {None: [ME.uuid]}
        self.waiting: list[tuple[Uuid, str, Expiry]] = []
        self.asked: dict[Uuid, list[int]] = {}  # when each who is missing was asked for

    def reachable(self, wanted: Uuid) -> bool:
        known = self.known.get(wanted)
        return self.method is DiscoveryMethod.TUNNEL or (known is not None and known.physical != ())

    def to(self, member: Uuid) -> ToMember:
        return ToMember(
            member,
            None if self.method is DiscoveryMethod.TUNNEL else self.known[member].physical[0],
        )

    def change(self, new: Mapping) -> None:
        joins = new.uuid not in self.known
        self.known[new.uuid] = new
        for unheard in self.unheard.values():
            unheard[:] = [each for each in unheard if each != new.uuid] + [new.uuid]
        if joins:
            self.unheard[new.uuid] = []

    def news(self, listener: Uuid | None) -> tuple[Mapping, ...]:
        told = list(self.unheard.get(listener, []))
        for each in self.unheard.values() if listener is None else [self.unheard.get(listener, [])]:
            each[:] = [who for who in each if who not in told]
        return tuple(self.known[who] for who in told if who != listener)

    def ask(self, wanted: Uuid) -> list[Effect[str]]:
        self.asked.setdefault(wanted, []).append(self.now)
        return who_has(self.method, wanted, self.own)

    def ask_at(self, wanted: Uuid) -> int:
        waits = [250, 500, 1_000, 2_000, 4_000, 8_000]
        asked = self.asked[wanted]
        return asked[-1] + waits[min(len(asked), len(waits)) - 1]

    def take(self, taken: list[tuple[Uuid, str, Expiry]]) -> list[tuple[Uuid, str, Expiry]]:
        self.waiting = [item for item in self.waiting if item not in taken]
        missing = {member for member, _, _ in self.waiting}
        self.asked = {member: times for member, times in self.asked.items() if member in missing}
        return taken

    def send(self, to: Uuid, body: str, expiry: Expiry) -> list[Effect[str]]:
        if self.now >= expiry:
            return [Drop(body, to, Reason.EXPIRED)]
        if self.reachable(to):
            return [Transmit(body, self.to(to), self.news(to))]
        self.waiting.append((to, body, expiry))
        effects = self.ask(to) if to not in self.asked else []
        for full, text, _ in self.take(self.waiting[:-MAX_WAITING]):
            effects.append(Drop(text, full, Reason.QUEUE_FULL))
        return effects

    def learn(self, new: Mapping) -> list[Effect[str]]:
        old = self.known.get(new.uuid)
        believed = new.uuid not in self.gone and new.uuid != ME.uuid
        if believed and (old is None or new.stamp > old.stamp):
            self.change(new)
        effects: list[Effect[str]] = []
        if self.reachable(new.uuid):
            for to, body, expiry in self.take([w for w in self.waiting if w[0] == new.uuid]):
                if self.now >= expiry:
                    effects.append(Drop(body, to, Reason.EXPIRED))
                else:
                    effects.append(Transmit(body, self.to(to), self.news(to)))
        return effects

    def hear(self, notice: Notice) -> list[Effect[str]]:
        if isinstance(notice, Invalidate):
            if notice.uuid != ME.uuid:
                self.gone.setdefault(notice.uuid, self.now)
                self.known.pop(notice.uuid, None)
                self.unheard.pop(notice.uuid, None)
                for unheard in self.unheard.values():
                    unheard[:] = [each for each in unheard if each != notice.uuid]
            lost = self.take([item for item in self.waiting if item[0] == notice.uuid])
            return [Drop(body, to, Reason.NO_ROUTE) for to, body, _ in lost]
        speaker = notice.asker if isinstance(notice, WhoHas) else notice.mapping
        effects = self.learn(speaker)
        if self.reachable(speaker.uuid) and speaker.uuid != ME.uuid:
            if isinstance(notice, WhoHas) and notice.uuid == ME.uuid:
                effects.append(SendNotice(IHave(self.own), self.to(speaker.uuid)))
            elif (
                isinstance(notice, WhoHas)
                and self.method is DiscoveryMethod.HOSTS
                and self.reachable(notice.uuid)
            ):
                answer = IHave(self.known[notice.uuid], hearsay=True)
                effects.append(SendNotice(answer, self.to(speaker.uuid)))
            if isinstance(notice, DiscoveryRequest):
                effects.append(SendNotice(DiscoveryResponse(self.own), self.to(speaker.uuid)))
        return effects

    def members(self, members: list[Mapping]) -> list[Effect[str]]:
        effects: list[Effect[str]] = []
        for each in members:
            before = each.uuid in self.known
            effects += self.learn(each)
            if self.method is DiscoveryMethod.ROUTER and not before and each.uuid in self.known:
                for physical in each.physical:
                    effects.append(SendNotice(DiscoveryRequest(self.own), ToPhysical(physical)))
        return effects

    def move(self, physical: Physical) -> list[Effect[str]]:
        self.own = Mapping(ME.member, (physical,), self.own.stamp + 1)
        self.change(self.own)
        return self.tell_all(IHave(self.own))

    def tell_all(self, notice: Notice) -> list[Effect[str]]:
        if self.method in SHARED:
            return [SendNotice(notice, EVERYONE)]
        others = [m for m in self.known.values() if m.physical and m.uuid != ME.uuid]
        told = {place for each in self.known.values() for place in each.physical}
        unheard = [
            host for host in HOSTS if self.method is DiscoveryMethod.HOSTS and host not in told
        ]
        tells: list[Effect[str]] = [SendNotice(notice, self.to(each.uuid)) for each in others]
        return tells + [SendNotice(notice, ToPhysical(host)) for host in unheard]

    def wake(self) -> list[Effect[str]]:
        expired = self.take([item for item in self.waiting if item[2] <= self.now])
        effects: list[Effect[str]] = [Drop(body, to, Reason.EXPIRED) for to, body, _ in expired]
        for wanted in [each for each in self.asked if self.ask_at(each) <= self.now]:
            effects += self.ask(wanted)
        return effects

    def wake_at(self) -> Expiry:
        expiries = [expiry for _, _, expiry in self.waiting]
        return min([NEVER, *expiries, *(self.ask_at(each) for each in self.asked)])

    def purge(self) -> None:
        self.gone = {who: when for who, when in self.gone.items() if self.now - when < AGE_MS}


class DiscoveryBesideItsOracle(RuleBasedStateMachine):
    @initialize(method=st.sampled_from(DiscoveryMethod))
    def begin(self, method: DiscoveryMethod) -> None:
        self.oracle = Oracle(method)
        self.discovery: Discovery[str] = Discovery(
            AddressCache(ME, First(), age_ms=AGE_MS),
            method,
            jitter=lambda: 1.0,
            hosts=HOSTS if method is DiscoveryMethod.HOSTS else (),
            max_waiting=MAX_WAITING,
        )
        self.sent: Counter[str] = Counter()  # how many outcomes each message must have in the end
        self.ended: Counter[str] = Counter()
        self.transmitted: dict[Uuid, list[str]] = {}

    def compare(self, effects: list[Effect[str]], expected: list[Effect[str]]) -> None:
        assert effects == expected
        for effect in effects:
            if isinstance(effect, Drop | Transmit):
                self.ended[effect.body] += 1
            if isinstance(effect, Transmit) and isinstance(effect.to, ToMember):
                self.transmitted.setdefault(effect.to.uuid, []).append(effect.body)

    @rule(step=st.sampled_from([0, 1, 249, 250, 1_000, 9_000]))
    def time_passes(self, step: int) -> None:
        self.oracle.now += step

    @rule(to=st.integers(1, 6), ttl=TTLS)
    def send(self, to: int, ttl: Expiry) -> None:
        body = f"{len(self.sent):06}"
        self.sent[body] = 1
        now, expiry = self.oracle.now, self.oracle.now + ttl
        effects = self.discovery.send(uuid(to), body, expiry=expiry, now=now)
        self.compare(effects, self.oracle.send(uuid(to), body, expiry))

    @rule(members=st.sets(SPEAKERS, min_size=1), ttl=TTLS.filter(bool))
    def send_all(self, members: set[int], ttl: Expiry) -> None:
        body = f"{len(self.sent):06}"
        others = [uuid(number) for number in members if uuid(number) != ME.uuid]
        now, expiry = self.oracle.now, self.oracle.now + ttl
        effects = self.discovery.send_all(map(uuid, members), body, expiry=expiry, now=now)
        if self.oracle.method in SHARED:
            self.sent[body] = 1
            self.compare(effects, [Transmit(body, EVERYONE, self.oracle.news(None))])
        else:
            self.sent[body] = len(others) or 1
            each = [self.oracle.send(other, body, expiry) for other in others]
            expected = [effect for part in each for effect in part]
            self.compare(effects, expected if others else [Drop(body, None, Reason.NO_ROUTE)])

    @rule(
        notice=st.one_of(
            st.builds(DiscoveryRequest, STATEMENTS),
            st.builds(DiscoveryResponse, STATEMENTS),
            st.builds(IHave, STATEMENTS, st.booleans()),
            st.builds(WhoHas, SPEAKERS.map(uuid), STATEMENTS),
            st.builds(Invalidate, SPEAKERS.map(uuid)),
        )
    )
    def hear(self, notice: Notice) -> None:
        effects = self.discovery.on_notice(notice, self.oracle.now)
        self.compare(effects, self.oracle.hear(notice))

    @rule(changes=st.lists(STATEMENTS, max_size=3))
    def hear_changes(self, changes: list[Mapping]) -> None:
        effects = self.discovery.on_changes(changes, self.oracle.now)
        expected = [effect for each in changes for effect in self.oracle.learn(each)]
        self.compare(effects, expected)

    @rule(members=st.lists(STATEMENTS, max_size=3))
    def hear_from_the_router(self, members: list[Mapping]) -> None:
        effects = self.discovery.on_members(members, self.oracle.now)
        self.compare(effects, self.oracle.members(members))

    @rule(net=st.integers(0, 2))
    def move(self, net: int) -> None:
        physical = place(1, net)
        self.compare(self.discovery.move([physical]), self.oracle.move(physical))

    @rule()
    def purge(self) -> None:
        assert self.discovery.cache.purge(self.oracle.now) == []
        self.oracle.purge()

    @rule()
    def wake(self) -> None:
        effects = self.discovery.wake(self.oracle.now)
        self.compare(sorted(effects, key=repr), sorted(self.oracle.wake(), key=repr))
        assert self.discovery.wake_at() > self.oracle.now
        assert all(expiry > self.oracle.now for _, _, expiry in self.oracle.waiting)

    @invariant()
    def the_same_waits_and_the_same_is_due(self) -> None:
        assert self.discovery.cache.mappings() == list(self.oracle.known.values())
        assert self.discovery.waiting == len(self.oracle.waiting) <= MAX_WAITING
        assert self.discovery.wake_at() == self.oracle.wake_at()
        assert len(self.discovery._timers) <= 64 + 4 * (MAX_WAITING + 1)

    @invariant()
    def nothing_ends_twice_or_overtakes(self) -> None:
        assert self.ended <= self.sent
        assert self.sent.total() - self.ended.total() == self.discovery.waiting
        for sent_in_order in self.transmitted.values():
            assert sent_in_order == sorted(set(sent_in_order))

    def teardown(self) -> None:
        if not hasattr(self, "oracle"):
            return
        left = [Drop(body, to, Reason.TRANSPORT_DOWN) for to, body, _ in self.oracle.waiting]
        goodbye = self.oracle.tell_all(Invalidate(ME.uuid))
        self.compare(self.discovery.close(), [*left, *goodbye])
        assert self.ended == self.sent


TestDiscovery = DiscoveryBesideItsOracle.TestCase
for proven in ("LA-5", "LA-6", "LA-7", "LA-8"):
    pytest.mark.rule(proven)(TestDiscovery)


# What a live member needs beside


@every_method
@pytest.mark.rule("LA-6")
def test_who_something_came_from_and_nobody_knows_is_asked_for(method: DiscoveryMethod) -> None:
    discovery = a_discovery(method)
    assert discovery.ask_for(YOU.uuid) == who_has(method, YOU.uuid)
    assert discovery.waiting == 0


@every_method
def test_a_member_can_be_reached_when_its_address_is_known_or_not_needed(
    method: DiscoveryMethod,
) -> None:
    discovery = a_discovery(method, YOU, mapping(4))
    assert discovery.reachable(YOU.uuid)
    assert discovery.reachable(ME.uuid)
    assert (
        discovery.reachable(SHE.uuid)
        == discovery.reachable(uuid(4))
        == (method is DiscoveryMethod.TUNNEL)
    )


@every_method
@pytest.mark.parametrize(("jitter", "in_tunnel"), [(0.0, 1), (0.9, 0)])
def test_in_a_large_tunnel_only_some_answer_since_the_router_tells_of_all(
    method: DiscoveryMethod, jitter: float, in_tunnel: int
) -> None:
    others = [mapping(number, place(number)) for number in range(10, 10 + 2 * ENOUGH_REPLIES)]
    discovery = a_discovery(method, *others, jitter=jitter)
    answers = discovery.on_notice(DiscoveryRequest(YOU), now=0)
    assert len(answers) == (in_tunnel if method is DiscoveryMethod.TUNNEL else 1)
    assert discovery.cache.lookup(YOU.uuid) == YOU  # learnt in any case


@pytest.mark.rule("LA-9")
@pytest.mark.parametrize("method", SHARED)
def test_two_sides_of_a_partition_meet_again(method: DiscoveryMethod) -> None:
    net = started(method, 1, 2, 3, 4)
    left, right = net.nodes[:2], net.nodes[2:]
    for one in left:
        for other in right:
            net.cut |= {(one.uuid, other.uuid), (other.uuid, one.uuid)}
    # While they are apart, one side moves, the other gets a new member, and each goes on.
    net.move(left[0], place(1, net=5))
    joiner = net.add(mapping(5, place(5)))
    net.cut |= {(one.uuid, joiner.uuid) for one in left} | {(joiner.uuid, one.uuid) for one in left}
    net.start(joiner)
    assert not any(node.has_heard_of(joiner) for node in left)
    assert not any(node.knows(left[0]) for node in right)
    # They are together again: each says that it is there, as it does now and then.
    net.cut.clear()
    for node in net.nodes:
        net.run(node, [SendNotice(IHave(node.own), EVERYONE)])
    assert net.converged()
    net.carried.clear()
    assert_all_talk_directly(net)


@pytest.mark.rule("LA-9")
def test_a_partition_of_a_list_ends_with_the_next_look_at_the_list() -> None:
    net = started(DiscoveryMethod.HOSTS, 1, 2, 3)
    net.isolate(net.nodes[2])
    net.move(net.nodes[0], place(1), place(1, net=5))
    assert not net.nodes[2].knows(net.nodes[0])
    net.cut.clear()
    net.run(net.nodes[2], net.nodes[2].discovery.start())
    assert net.converged()


def test_of_many_members_in_a_tunnel_a_joiner_gets_few_answers() -> None:
    mappings = [mapping(number) for number in range(1, 201)]
    chance = iter(range(200))
    answers = 0
    for own in mappings:
        cache = AddressCache(own)
        jitter = next(chance) / 200
        member: Discovery[str] = Discovery(cache, DiscoveryMethod.TUNNEL, jitter=lambda j=jitter: j)  # type: ignore[misc]
        member.on_members(mappings, now=0)  # the router tells everybody of everybody
        answers += len(member.on_notice(DiscoveryRequest(mapping(2_000)), now=0))
        assert len(cache) == 201
    assert answers == ENOUGH_REPLIES
