"""The graph of a trace: places for its layers, and an edge for each blob from the last layer that wrote it.

In-place layers are in the box of the layer whose blob they overwrite, one below the other.
"""

from __future__ import annotations

from typing import Any

from .draw_layout import layout
from .trace import LayerFacts

LETTER, PAD, LEAST_WIDTH = 6.6, 28.0, 150.0
"""Width of a letter, space beside a line, and the narrowest box, in pixels."""
HEIGHT, PART_HEIGHT = 42.0, 24.0
SPLIT_SIZE = (64.0, 18.0)

Json = dict[str, Any]
Point = tuple[float, float]


def graph(layers: list[LayerFacts]) -> Json:
    """Boxes by their top left corners, edges as points from the lower border of one box to the upper border of another."""
    boxes, edges = _boxes(layers)
    box_of = {layer: b for b, box in enumerate(boxes) for layer in box}
    sizes = [_size([layers[i] for i in box]) for box in boxes]
    placed = layout(sizes, [(box_of[start], box_of[end]) for start, end, _ in edges])
    corners = [(x - w / 2, y - h / 2) for (x, y), (w, h) in zip(placed.centres, sizes, strict=True)]
    nodes = [
        {"layer": i, "x": x, "y": y + down, "w": width, "h": height}
        for box, (x, y), (width, _) in zip(boxes, corners, sizes, strict=True)
        for i, down, height in _parts(box, layers)
    ]
    ways = []
    for (start, end, name), path in zip(edges, placed.paths, strict=True):
        first, last = box_of[start], box_of[end]
        bottom = (placed.centres[first][0], corners[first][1] + sizes[first][1])
        top = (placed.centres[last][0], corners[last][1])
        points = [[round(x, 1), round(y, 1)] for x, y in (bottom, *path, top)]
        ways.append({"from": start, "to": end, "blob": name, "points": points})
    return {"width": placed.size[0], "height": placed.size[1], "nodes": nodes, "edges": ways}


def _boxes(layers: list[LayerFacts]) -> tuple[list[list[int]], list[tuple[int, int, str]]]:
    """The layers of each box, in order, and the edges (from layer, to layer, blob)."""
    boxes: list[list[int]] = []
    edges: list[tuple[int, int, str]] = []
    box_of: dict[int, list[int]] = {}
    writer: dict[str, int] = {}
    read: set[str] = set()
    for i, layer in enumerate(layers):
        joins = layer.in_place and layer.tops == layer.bottoms and len(layer.tops) == 1
        host = writer.get(layer.bottoms[0]) if joins else None
        if host is not None and len(layers[host].tops) == 1 and layer.bottoms[0] not in read:
            box_of[i] = box_of[host]
            box_of[i].append(i)
        else:
            box_of[i] = [i]
            boxes.append(box_of[i])
            # one edge for a blob that is two bottoms
            edges += [(writer[name], i, name) for name in dict.fromkeys(layer.bottoms) if name in writer]
            read.update(layer.bottoms)
        for name in layer.tops:
            writer[name] = i
            read.discard(name)  # overwritten: the new contents have no reader yet
    return boxes, edges


def _size(box: list[LayerFacts]) -> Point:
    if box[0].is_split:
        return SPLIT_SIZE
    letters = max(max(len(layer.name), len(layer.type) + 18) for layer in box)
    return max(LETTER * letters + PAD, LEAST_WIDTH), HEIGHT + PART_HEIGHT * (len(box) - 1)


def _parts(box: list[int], layers: list[LayerFacts]) -> list[tuple[int, float, float]]:
    """(layer, distance from the box's top, height) of each layer of a box."""
    if layers[box[0]].is_split:
        return [(box[0], 0.0, SPLIT_SIZE[1])]
    parts = [(box[0], 0.0, HEIGHT)]
    return parts + [(i, HEIGHT + PART_HEIGHT * n, PART_HEIGHT) for n, i in enumerate(box[1:])]
