"""The arithmetic of a simulated fleet: large sizes, and participants that come back."""

from __future__ import annotations

import numpy as np
import pytest

from waystation import Address
from waystation.simulate.fleet import NEVER, Cell, Fleet, clocks
from waystation.simulate.links import End
from waystation.simulate.names import Names, hex_ids
from waystation.simulate.traffic import Traffic

VAST = Fleet(nodes=17_000_000, participants=100_000_000, messages=1_000_000_000, seed=3)


def test_some_participants_come_back_to_the_leaf_they_were_at_and_some_go_elsewhere() -> None:
    cell = Cell(Fleet(nodes=17, participants=2_000, messages=0), 0)
    again = cell.begin[:, 1] < NEVER
    stays = cell.leaf[again, 0] == cell.leaf[again, 1]
    assert 0.2 < stays.mean() < 0.5
    assert (cell.begin[again, 1] > cell.end[again, 0]).all()


@pytest.mark.parametrize("number", [0, 63_999, 64_000, 999_999])
def test_every_node_of_a_vast_fleet_has_an_address(number: int) -> None:
    cell = Cell(VAST, number)
    names = Names(cell, Traffic(cell).links)
    for node in (0, VAST.leaves(number)):
        address = names.address(node)
        host, port = Address.parse(address).data.decode().split(":")
        assert all(0 <= int(part) < 256 for part in host.split("."))
        assert port == "4000"


def test_no_two_messages_of_a_fleet_have_the_same_id() -> None:
    numbers = np.arange(1_000)
    ids = {
        row.tobytes() for cell in (0, 1, 2, 63_999, 999_999) for row in hex_ids(VAST, cell, numbers)
    }
    assert len(ids) == 5_000
    assert all(len(id) == 32 for id in ids)
    halves = {id[16:] for id in ids}  # which alone is enough
    assert len(halves) == 5_000


def test_the_cells_of_a_vast_fleet_add_up_to_its_size() -> None:
    fleet = Fleet(nodes=100_000, participants=100_000_000, messages=1_000_000_007)
    sizes = [fleet.sizes(cell) for cell in range(fleet.cells)]
    assert tuple(map(sum, zip(*sizes, strict=True))) == (fleet.participants, fleet.messages)
    assert sum(fleet.leaves(cell) + 1 for cell in range(fleet.cells)) == fleet.nodes


def test_a_session_lasts_no_longer_than_both_of_its_nodes() -> None:
    cell = Cell(Fleet(nodes=170, participants=10, messages=0, seed=2), 1)
    links = Traffic(cell).links
    for sessions in (links.leaves, links.onward, links.former):
        assert len(sessions.link)
        assert (sessions.opened < sessions.breaks).all()
        assert (sessions.breaks <= sessions.dialer_until).all()
        assert (sessions.breaks <= sessions.listener_until).all()
        over = sessions.end != End.NONE
        assert (sessions.breaks < NEVER).tolist() == over.tolist()
        again = sessions.reopened()
        assert (sessions.dialer_until[over] < again[over]).all()
        assert (sessions.listener_until[over] < again[over]).all()
    assert set(links.leaves.end.tolist()) == {End.NONE, End.DIALER, End.LISTENER, End.LINK}


def test_clocks_differ_by_whole_milliseconds_and_those_of_hubs_by_less_than_a_second() -> None:
    fleet = Fleet(nodes=1_700, participants=0, messages=0)
    ahead = np.concatenate([clocks(fleet, cell) for cell in range(fleet.cells)])
    hubs = np.array([clocks(fleet, cell)[0] for cell in range(fleet.cells)])
    assert not (ahead % 1_000).any()
    assert np.abs(hubs).max() < 1_000_000 < np.abs(ahead).max()
    assert np.median(np.abs(ahead)) < 5_000
