"""A net's drawing as SVG, PNG, PDF or Graphviz's text: boxes with lines of text and arrows, in one of four directions."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from minicaffe import limits

from .draw_layout import layout

if TYPE_CHECKING:
    from PIL import ImageFont

LETTER, LINE, FONT = 6.6, 16.0, 12
"""Width of a letter, height of a line and size of the font, in pixels."""
PAD, MARGIN, HEAD = 9.0, 16.0, 7.0
"""The space inside a box and around the picture, and the length of an arrow's head."""
INK, RULE, PAPER = "#1c2733", "#5b6b7b", "#ffffff"

Point = tuple[float, float]


@dataclass
class Node:
    """A box: its lines of text, its colour, and whether its ends are round (a blob's)."""

    lines: list[str]
    fill: str
    round: bool = False


@dataclass
class Graph:
    """Nodes, and arrows (from, to) between them by index."""

    title: str = ""
    nodes: list[Node] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Picture:
    """The picture in pixels: boxes (left, top, right, bottom) and arrows as points."""

    size: Point
    boxes: list[tuple[float, float, float, float]]
    arrows: list[list[Point]]


def arrange(graph: Graph, rankdir: str) -> Picture:
    """Arrange a graph whose arrows lead down (TB), up (BT), right (LR) or left (RL)."""
    sizes = [(LETTER * max(map(len, node.lines)) + 2 * PAD, LINE * len(node.lines) + 2 * PAD * 0.6) for node in graph.nodes]
    sideways = rankdir in ("LR", "RL")
    turned = [(height, width) if sideways else (width, height) for width, height in sizes]  # layout knows along and across only
    found = layout(turned, graph.edges)
    total = found.size[1]

    def place(along: float, across: float) -> Point:
        across = total - across if rankdir in ("BT", "RL") else across
        x, y = (across, along) if sideways else (along, across)
        return x + MARGIN, y + MARGIN

    centres = [place(*centre) for centre in found.centres]
    boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(centres, sizes, strict=True)]
    arrows = []
    for (start, end), path in zip(graph.edges, found.paths, strict=True):
        points = [centres[start], *(place(*point) for point in path), centres[end]]
        points[0] = _border(boxes[start], points[1], sideways)
        points[-1] = _border(boxes[end], points[-2], sideways)
        arrows.append(points)
    width, height = (found.size[1], found.size[0]) if sideways else found.size
    return Picture((width + 2 * MARGIN, height + 2 * MARGIN), boxes, arrows)


def _border(box: tuple[float, float, float, float], towards: Point, sideways: bool) -> Point:
    """The middle of the side of box that faces a point."""
    left, top, right, bottom = box
    if sideways:
        return (right if towards[0] > (left + right) / 2 else left, (top + bottom) / 2)
    return ((left + right) / 2, bottom if towards[1] > (top + bottom) / 2 else top)


def svg(graph: Graph, rankdir: str) -> str:
    """The drawing as an SVG document."""
    picture = arrange(graph, rankdir)
    width, height = picture.size
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.1f} {height:.1f}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="11">',
        f"<title>{escape(graph.title)}</title>",
        f'<defs><marker id="head" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="{HEAD}" markerHeight="{HEAD}"'
        f' orient="auto"><path d="M0 0L10 5L0 10z" fill="{RULE}"/></marker></defs>',
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
    ]
    for points in picture.arrows:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        out.append(f'<path d="{path}" fill="none" stroke="{RULE}" marker-end="url(#head)"/>')
    for node, (left, top, right, bottom) in zip(graph.nodes, picture.boxes, strict=True):
        radius = (bottom - top) / 2 if node.round else 3
        out.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" rx="{radius:.1f}"'
            f' fill="{node.fill}" stroke="{RULE}"/>'
        )
        first = (top + bottom) / 2 - LINE * (len(node.lines) - 1) / 2 + 4  # y is the baseline, 4 below a letter's middle
        for i, line in enumerate(node.lines):
            weight = ' font-weight="bold"' * (i == 0 and not node.round)
            out.append(
                f'<text x="{(left + right) / 2:.1f}" y="{first + i * LINE:.1f}" text-anchor="middle"{weight}'
                f' fill="{INK}">{escape(line)}</text>'
            )
    return "\n".join([*out, "</svg>", ""])


def dot(graph: Graph, rankdir: str) -> str:
    """Return the drawing in Graphviz's language, which Graphviz lays out."""
    out = [
        f'digraph "{_escaped(graph.title)}" {{',
        f"  rankdir={rankdir};",
        f'  node [shape=box, style=filled, color="{RULE}", fontcolor="{INK}", fontname="monospace", fontsize={FONT}];',
        f'  edge [color="{RULE}"];',
    ]
    for i, node in enumerate(graph.nodes):
        style = ', style="filled,rounded"' * node.round
        lines = "\\n".join(_escaped(line).replace("&", "&amp;") for line in node.lines)  # labels have HTML's entities
        out.append(f'  n{i} [label="{lines}", fillcolor="{node.fill}"{style}];')
    out += [f"  n{start} -> n{end};" for start, end in graph.edges]
    return "\n".join([*out, "}", ""])


def _escaped(text: str) -> str:
    r"""Return text for a quoted string of Graphviz's, in which \N means the node's name."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def bitmap(graph: Graph, rankdir: str, kind: str = "png") -> bytes:
    """The drawing as the bytes of a PNG, or of a PDF whose page it is. Raises LimitError for more than limits.pixels."""
    from PIL import Image, ImageDraw

    picture = arrange(graph, rankdir)
    width, height = (round(side) or 1 for side in picture.size)
    limits.check("the drawing", width * height, "pixels")
    image = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(image)
    font = _font()
    for points in picture.arrows:
        pen.line(points, fill=RULE, width=1)
        pen.polygon(_head(points[-2], points[-1]), fill=RULE)
    for node, box in zip(graph.nodes, picture.boxes, strict=True):
        x1, y1, x2, y2 = map(round, box)  # Pillow before 10.1 fails for some fractions
        pen.rounded_rectangle((x1, y1, x2, y2), (y2 - y1) // 2 if node.round else 3, fill=node.fill, outline=RULE)
        first = (box[1] + box[3]) / 2 - LINE * len(node.lines) / 2
        for i, line in enumerate(node.lines):
            left, top, right, bottom = pen.textbbox((0, 0), line, font=font)
            x = (box[0] + box[2] - (right - left)) / 2 - left  # textbbox begins at the ink, not at 0
            pen.text((x, first + i * LINE + (LINE - (bottom - top)) / 2 - top), line, fill=INK, font=font)
    buffer = io.BytesIO()
    image.save(buffer, kind.upper())
    return buffer.getvalue()


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's font; of size FONT if Pillow is 10.1 or newer."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size=FONT)
    except TypeError:
        return ImageFont.load_default()


def _head(before: Point, tip: Point) -> list[Point]:
    """The triangle of an arrow's head."""
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    dx, dy = dx / length * HEAD, dy / length * HEAD
    return [tip, (tip[0] - dx - dy / 2, tip[1] - dy + dx / 2), (tip[0] - dx + dy / 2, tip[1] - dy - dx / 2)]
