"""Places for a graph's nodes in ranks: edges lead to later ranks, few edges cross, neighbours are close.

    ranks by longest path -> waypoints, one per rank, on long edges -> order in a rank by the mean of neighbours, in sweeps
    down and up -> places along a rank: as near the mean of neighbours as the order and the gaps allow

Source: the method of Sugiyama, Tagawa and Toda (1981).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import accumulate, pairwise
from math import inf

SWEEPS, MANY = 12, 4000
"""The number of sweeps; with more nodes and waypoints than MANY, fewer in proportion."""
WAYPOINTS = 12
"""The most waypoints per node on average (published nets take up to 10); above it the longest edges have none. Edges between
all pairs of n nodes would have n^3 / 6 waypoints."""
GAP_ALONG, GAP_BETWEEN = 22.0, 26.0
"""Free space between the nodes of a rank, and between ranks."""

Edge = tuple[int, int]
Point = tuple[float, float]
Near = Mapping[int, list[int]]


@dataclass
class Layout:
    """The places of a graph's nodes.

    centres: of the nodes (along the rank, across the ranks), in the nodes' order; paths: the waypoints of each edge;
    size: of the whole, along and across.
    """

    centres: list[Point]
    paths: list[list[Point]]
    size: Point


def hosts(layers: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[int | None]:
    """Return, for each layer (bottoms, tops), the layer whose box it joins; None for a box of its own.

    A layer that works in place joins the writer of its blob, unless another layer has read that blob since.
    """
    writer: dict[str, int | None] = {}
    read: set[str] = set()
    found: list[int | None] = []
    for i, (bottoms, tops) in enumerate(layers):
        in_place = len(tops) == 1 and list(tops) == list(bottoms)
        found.append(writer.get(tops[0]) if in_place and tops[0] not in read else None)
        if found[i] is not None:
            continue
        read.update(bottoms)
        for name in tops:
            if bottoms or name not in writer:  # otherwise another phase's data layer has written it
                writer[name] = i if len(tops) == 1 else None
                read.discard(name)  # overwritten: the new contents have no reader yet
    return found


def layout(sizes: Sequence[Point], edges: Sequence[Edge]) -> Layout:
    """Return the places of nodes with these sizes (along, across), connected by edges (from, to) without cycles."""
    ranks = ranked(len(sizes), edges)
    sizes, rank_of, links, chains = _with_waypoints(sizes, edges, ranks)
    before, after = _neighbours(links)
    rows: dict[int, list[int]] = defaultdict(list)
    for node, rank in enumerate(rank_of):
        rows[rank].append(node)
    order = [rows[rank] for rank in sorted(rows)]
    sweeps = max(2, min(SWEEPS, SWEEPS * MANY // max(len(sizes), 1)))
    _untangle(order, before, after, sweeps)
    along = _along(order, sizes, before, after, sweeps)
    across, height = _across(order, sizes)
    left = min((along[node] - sizes[node][0] / 2 for node in along), default=0.0)
    right = max((along[node] + sizes[node][0] / 2 for node in along), default=0.0)
    places = [(along[node] - left, across[rank_of[node]]) for node in range(len(sizes))]
    paths = [[places[node] for node in chain] for chain in chains]
    return Layout(places[: len(ranks)], paths, (right - left, height))


def ranked(nodes: int, edges: Sequence[Edge]) -> list[int]:
    """Return each node's rank: one more than its highest predecessor's; for a source, one less than its lowest successor's."""
    before, after = _neighbours(edges)
    order = list(TopologicalSorter({node: before[node] for node in range(nodes)}).static_order())
    ranks = [0] * nodes
    for node in order:
        ranks[node] = max((ranks[other] + 1 for other in before[node]), default=0)
    for node in order:
        if not before[node] and after[node]:
            # An input stands next to its reader, so a label's input is not at the top.
            ranks[node] = min(ranks[other] for other in after[node]) - 1
    return ranks


def _neighbours(edges: Sequence[Edge]) -> tuple[Near, Near]:
    before: dict[int, list[int]] = defaultdict(list)
    after: dict[int, list[int]] = defaultdict(list)
    for start, end in edges:
        before[end].append(start)
        after[start].append(end)
    return before, after


def _with_waypoints(
    sizes: Sequence[Point], edges: Sequence[Edge], ranks: Sequence[int]
) -> tuple[list[Point], list[int], list[Edge], list[list[int]]]:
    """Add a node of no size in each rank that an edge passes; return sizes, ranks, edges of length 1, and waypoints by edge."""
    all_sizes, all_ranks, links, chains = list(sizes), list(ranks), [], []
    lengths = sorted(ranks[end] - ranks[start] for start, end in edges)
    # The shortest edges get waypoints first.
    affordable = sum(total <= WAYPOINTS * len(sizes) for total in accumulate(length - 1 for length in lengths))
    too_long = lengths[affordable] if affordable < len(lengths) else inf  # this length and longer ones go straight
    for start, end in edges:
        chain = []
        for rank in range(ranks[start] + 1, ranks[end] if ranks[end] - ranks[start] < too_long else 0):
            chain.append(len(all_sizes))
            all_sizes.append((0.0, 0.0))
            all_ranks.append(rank)
        links += list(zip([start, *chain], [*chain, end], strict=True))
        chains.append(chain)
    return all_sizes, all_ranks, links, chains


def _untangle(order: list[list[int]], before: Near, after: Near, sweeps: int) -> None:
    """Sort each rank, in place, by the mean place of its nodes' neighbours in the previous rank."""
    for sweep in range(sweeps):
        # down from the second rank, or up from the last but one
        near, rows = (before, order[1:]) if sweep % 2 == 0 else (after, order[-2::-1])
        place = {node: i for row in order for i, node in enumerate(row)}
        for row in rows:
            # stable: equal nodes keep their order
            row.sort(key=lambda node: _mean([place[other] for other in near[node]], place[node]))
            place.update({node: i for i, node in enumerate(row)})  # the next rank sorts by the new order


def _along(order: list[list[int]], sizes: Sequence[Point], before: Near, after: Near, sweeps: int) -> dict[int, float]:
    """Return each node's centre along its rank."""
    along: dict[int, float] = {}
    for row in order:
        along.update(_spaced(row, dict.fromkeys(row, 0.0), sizes))
    for sweep in range(sweeps):
        for row in order if sweep % 2 == 0 else reversed(order):
            wanted = {node: _mean([along[other] for other in [*before[node], *after[node]]], along[node]) for node in row}
            along.update(_spaced(row, wanted, sizes))
    return along


def _spaced(row: Sequence[int], wanted: Mapping[int, float], sizes: Sequence[Point]) -> dict[int, float]:
    """Return centres near the wanted ones that keep the row's order and gaps: the mean of a push right and a push left."""
    right, left = dict(wanted), dict(wanted)
    for a, b in pairwise(row):
        right[b] = max(right[b], right[a] + (sizes[a][0] + sizes[b][0]) / 2 + GAP_ALONG)
    for b, a in pairwise(reversed(row)):
        left[a] = min(left[a], left[b] - (sizes[a][0] + sizes[b][0]) / 2 - GAP_ALONG)
    return {node: (right[node] + left[node]) / 2 for node in row}  # both keep the gaps, and so does their mean


def _across(order: list[list[int]], sizes: Sequence[Point]) -> tuple[dict[int, float], float]:
    """Return the centre of each rank across the ranks, and the total length."""
    centres: dict[int, float] = {}
    at = 0.0
    for rank, row in enumerate(order):
        depth = max(sizes[node][1] for node in row)
        centres[rank] = at + depth / 2
        at += depth + GAP_BETWEEN
    return centres, max(at - GAP_BETWEEN, 0.0)


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
