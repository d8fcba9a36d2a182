"""Positions of the nodes of a graph: a plain force layout, deterministic.

Numbers in, numbers out; names and colours are for topology.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

_ROUNDS: Final = 400
_GOLDEN: Final = np.pi * (3 - np.sqrt(5))


def positions(
    number: int, links: Sequence[tuple[int, int]], box: tuple[float, float], radii: Array
) -> Array:
    """A position in the box for each node: linked nodes are close, and all keep a distance.

    Give the nodes in the order of their importance: the first start in the middle.
    """
    if number == 0:
        return np.zeros((0, 2))
    tied = [*links, *_ties(number, links)]
    placed = _relaxed(_untangled(number, tied) + _spiral(number) * 0.05, tied)
    placed = _upright(placed, box)
    return _apart(_fitted(placed, box), radii, box)


def _ties(number: int, links: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Invisible links from the first node to the first of each separate part."""
    part = list(range(number))

    def root(node: int) -> int:
        while part[node] != node:
            part[node] = part[part[node]]
            node = part[node]
        return node

    for one, other in links:
        low, high = sorted((root(one), root(other)))
        part[high] = low
    return [(0, node) for node in range(1, number) if root(node) == node]


def _spiral(number: int) -> Array:
    """Evenly spread from the middle outward, no two in line."""
    steps = np.arange(number)
    radius, angle = np.sqrt(steps + 0.5), steps * _GOLDEN
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _untangled(number: int, links: Sequence[tuple[int, int]]) -> Array:
    """A first guess by spectral layout: a ring is a ring from the beginning."""
    if number < 4 or not links:
        return _spiral(number)
    waves = np.zeros((number, number))
    for place, (one, other) in enumerate(links):
        weight = 1 + 0.1 * place / len(links)  # so that no two eigenvalues are equal
        waves[[one, other], [other, one]] -= weight
        waves[[one, other], [one, other]] += weight
    _, forms = np.linalg.eigh(waves)
    chosen = forms[:, 1:3]
    largest = np.abs(chosen).argmax(axis=0)
    chosen = chosen * np.sign(chosen[largest, [0, 1]])
    guess: Array = chosen / np.abs(chosen).max(axis=0) * np.sqrt(number)
    return guess


def _relaxed(placed: Array, links: Sequence[tuple[int, int]]) -> Array:
    """Fruchterman and Reingold's forces: links pull, all nodes push, steps grow smaller."""
    ends = np.array(links, dtype=np.int64).reshape(-1, 2)
    reach = np.sqrt(len(placed))
    for round in range(_ROUNDS):
        apart = placed[:, None, :] - placed[None, :, :]
        distance = np.maximum(np.hypot(apart[..., 0], apart[..., 1]), 0.01)
        force = (apart / distance[..., None] ** 2).sum(axis=1)
        pull = placed[ends[:, 0]] - placed[ends[:, 1]]
        pull *= np.hypot(pull[:, 0], pull[:, 1])[:, None]
        np.add.at(force, ends[:, 0], -pull)
        np.add.at(force, ends[:, 1], pull)
        force -= placed * 0.06  # a node without links must not drift away
        length = np.maximum(np.hypot(force[:, 0], force[:, 1]), 1e-9)[:, None]
        most = reach * 0.2 * (1 - round / _ROUNDS) + 0.005
        placed = placed + force / length * np.minimum(length, most)
    return placed


def _upright(placed: Array, box: tuple[float, float]) -> Array:
    """Rotated so that the long side of the graph is along the long side of the box."""
    centred: Array = placed - placed.mean(axis=0)
    if len(placed) < 2:
        return centred
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes if len(axes) == 2 else np.eye(2)
    axes = axes * np.where(axes[:, :1] < 0, -1, 1)  # the direction must be deterministic
    turned: Array = centred @ axes.T
    return turned if box[0] >= box[1] else turned[:, ::-1]


def _fitted(placed: Array, box: tuple[float, float]) -> Array:
    """As large as the box allows, with limited distortion."""
    low, high = placed.min(axis=0), placed.max(axis=0)
    room = np.array(box) / np.maximum(high - low, 1e-6)
    scale = np.minimum(room, room.min() * 1.5)
    scale = np.minimum(scale, 240.0)  # two nodes need not be at opposite edges
    fitted: Array = (placed - (low + high) / 2) * scale + np.array(box) / 2
    return fitted


def _apart(placed: Array, radii: Array, box: tuple[float, float]) -> Array:
    """Without overlapping circles."""
    least = radii[:, None] + radii[None, :] + 6.0
    np.fill_diagonal(least, 0.0)
    for _ in range(60):
        apart = placed[:, None, :] - placed[None, :, :]
        distance = np.maximum(np.hypot(apart[..., 0], apart[..., 1]), 0.01)
        short = np.maximum(least - distance, 0.0)
        if not short.any():
            break
        placed = placed + (apart / distance[..., None] * short[..., None]).sum(axis=1) * 0.3
        placed = np.clip(placed, 0.0, np.array(box))
    return placed
