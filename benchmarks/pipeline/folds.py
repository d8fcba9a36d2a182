"""The fold of route events for engines that have none: they read and sort, numpy folds.

It is the pipeline's own fold, node by node, on as many threads as there are cores; whatever is
written for it in SQL takes several times as long.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from waystation.pipeline.kernels.folding import fold_routes, fold_subscriptions
from waystation.pipeline.kernels.lifetimes import Lifetimes


def lifetimes(nodes: Mapping[str, pa.Table]) -> dict[str, Lifetimes]:
    """When the incarnations of each node ended, from the rows of `nodes` of each."""
    found = {}
    for name, rows in nodes.items():
        found[name] = Lifetimes()
        found[name].add(rows)
    return found


def route_history(routes: Mapping[str, pa.Table], nodes: Mapping[str, pa.Table]) -> pa.Table:
    """The history of all nodes."""
    return _folded(fold_routes, routes, nodes)


def subscription_history(
    subscriptions: Mapping[str, pa.Table], nodes: Mapping[str, pa.Table]
) -> pa.Table:
    """The same of subscriptions."""
    return _folded(fold_subscriptions, subscriptions, nodes)


def _folded(
    fold: object, events: Mapping[str, pa.Table], nodes: Mapping[str, pa.Table]
) -> pa.Table:
    lives = lifetimes(nodes)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(lambda name: fold(name, events[name], lives[name]), events)  # type: ignore[operator]
        return pa.concat_tables(list(parts))
