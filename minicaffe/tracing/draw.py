"""Drawings of a net as SVG, PNG, PDF or Graphviz's text, with the functions of pycaffe's caffe.draw but without Graphviz.

    draw_net_to_file(net_param, "net.svg", rankdir="TB")        # `minicaffe draw net.prototxt -o net.svg` on the command line

Layers are boxes, blobs are round; an in-place layer is in the box of the layer whose blob it overwrites. Arrows lead in one of
four directions.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from minicaffe import limits
from minicaffe.errors import Error, on_one_line
from minicaffe.files import replacing
from minicaffe.formats.upgrade import upgrade_net
from minicaffe.layer import Layer
from minicaffe.layer_list import filter_layers
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.pool.pooling import Pooling
from minicaffe.layers.python.python import Python
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of, linear_block, types

from .draw_layout import hosts, layout

if TYPE_CHECKING:
    from PIL import ImageFont


LETTER, LINE, FONT = 6.6, 16.0, 12
"""Width of a letter, height of a line and size of the font, in pixels."""
PAD, MARGIN, HEAD = 9.0, 16.0, 7.0
"""The space inside a box and around the picture, and the length of an arrow's head."""
INK, RULE, PAPER = "#1c2733", "#5b6b7b", "#ffffff"

Point = tuple[float, float]

DIRECTIONS = ("TB", "BT", "LR", "RL")
BLOB = "#eceff2"
LOSS, DATA = "#f4b6cf", "#bfe3b4"
COLOURS: dict[type[Layer], str] = {
    Convolution: "#f6b3a8",
    InnerProduct: "#dcbcf2",
    Pooling: "#fad59a",
    RoiLayer: "#fad59a",
    Python: "#f5e58f",
    Layer: "#bfd6f2",
}
"""Of these classes and the classes derived from them."""

NetParameter = caffe_pb2.NetParameter
LayerParameter = caffe_pb2.LayerParameter


@dataclass
class Node:
    """A box: its lines of text, its colour, and whether its ends are round (as a blob's are)."""

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
    """A drawing in pixels: boxes (left, top, right, bottom), and arrows as lists of points."""

    size: Point
    boxes: list[tuple[float, float, float, float]]
    arrows: list[list[Point]]


def arrange(graph: Graph, rankdir: str) -> Picture:
    """Return the places of a graph's boxes and arrows. Arrows lead down (TB), up (BT), right (LR) or left (RL)."""
    sizes = [(LETTER * max(map(len, node.lines)) + 2 * PAD, LINE * len(node.lines) + 2 * PAD * 0.6) for node in graph.nodes]
    sideways = rankdir in ("LR", "RL")
    lengths = [(height, width) if sideways else (width, height) for width, height in sizes]  # along, across
    found = layout(lengths, graph.edges)
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
    """Return the middle of the box's side that faces a point."""
    left, top, right, bottom = box
    if sideways:
        return (right if towards[0] > (left + right) / 2 else left, (top + bottom) / 2)
    return ((left + right) / 2, bottom if towards[1] > (top + bottom) / 2 else top)


def svg(graph: Graph, rankdir: str) -> str:
    """Return the drawing as an SVG document."""
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
    """Return the graph as Graphviz's text."""
    out = [
        f'digraph "{_escaped(graph.title)}" {{',
        f"  rankdir={rankdir};",
        f'  node [shape=box, style=filled, color="{RULE}", fontcolor="{INK}", fontname="monospace", fontsize={FONT}];',
        f'  edge [color="{RULE}"];',
    ]
    for i, node in enumerate(graph.nodes):
        style = ', style="filled,rounded"' * node.round
        # Graphviz reads HTML's entities in labels.
        lines = "\\n".join(_escaped(line).replace("&", "&amp;") for line in node.lines)
        out.append(f'  n{i} [label="{lines}", fillcolor="{node.fill}"{style}];')
    out += [f"  n{start} -> n{end};" for start, end in graph.edges]
    return "\n".join([*out, "}", ""])


def _escaped(text: str) -> str:
    r"""Return text escaped for a quoted string of Graphviz, in which \N means the node's name."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def bitmap(graph: Graph, rankdir: str, kind: str = "png") -> bytes:
    """Return the drawing as the bytes of a PNG or a one-page PDF. Raises LimitError for more than limits.pixels."""
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
    """Return Pillow's default font, in size FONT if Pillow is 10.1 or newer."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size=FONT)
    except TypeError:
        return ImageFont.load_default()


def _head(before: Point, tip: Point) -> list[Point]:
    """Return the triangle of an arrow's head."""
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    dx, dy = dx / length * HEAD, dy / length * HEAD
    return [tip, (tip[0] - dx - dy / 2, tip[1] - dy + dx / 2), (tip[0] - dx + dy / 2, tip[1] - dy - dx / 2)]


def get_pooling_types_dict() -> dict[int, str]:
    """Return the names of pooling_param.pool's values."""
    return {value.number: value.name for value in caffe_pb2.PoolingParameter.PoolMethod.DESCRIPTOR.values}


def get_edge_label(layer: LayerParameter) -> str:
    """Return the label of the arrow from a layer to its top: a data layer's batch size, or the number of outputs."""
    if layer.HasField("data_param"):
        return f"batch {layer.data_param.batch_size}"
    return str(getattr(layer, block).num_output) if (block := linear_block(layer)) else ""


def get_layer_lr_mult(layer: LayerParameter) -> str:
    """Return the learning rate multipliers of a layer with weights and a bias: "lr 1, 2"."""
    if not linear_block(layer):
        return ""
    return "lr " + ", ".join(f"{param.lr_mult:g}" for param in layer.param) if layer.param else "lr 1"


def get_layer_label(layer: LayerParameter, rankdir: str = "LR", display_lrm: bool = False) -> str:
    """Return the lines in a layer's box: its name, its type with the main parameters, and its multipliers if display_lrm."""
    lines = [on_one_line(layer.name), on_one_line(" ".join(filter(None, [layer.type, layer_details(layer)])))]
    if display_lrm and get_layer_lr_mult(layer):
        lines.append(get_layer_lr_mult(layer))
    return "\n".join(lines)


def layer_details(layer: LayerParameter) -> str:
    """Return the main parameters of a layer: "3x3 / 2, pad 1", "MAX 2x2 / 2", the class of a Python layer; else ""."""
    kind = class_of(layer)
    if issubclass(kind, Convolution):
        return _window(layer.convolution_param)
    if issubclass(kind, Pooling):
        pool = layer.pooling_param
        name = get_pooling_types_dict()[pool.pool]
        return f"{name} global" if pool.global_pooling else f"{name} {_window(pool)}"
    return f"{layer.python_param.layer}" if layer.type == "Python" else ""


def _window(param: caffe_pb2.ConvolutionParameter | caffe_pb2.PoolingParameter) -> str:
    kernel, stride, pad = _sides(param, "kernel_size", "kernel"), _sides(param, "stride"), _sides(param, "pad")
    size = "x".join(map(str, kernel * 2 if len(kernel) == 1 else kernel))
    return size + f" / {_joined(stride)}" * any(side != 1 for side in stride) + f", pad {_joined(pad)}" * any(pad)


def _sides(param: caffe_pb2.ConvolutionParameter | caffe_pb2.PoolingParameter, name: str, sides: str = "") -> list[int]:
    """Return a field of a window: its values, or those of the fields for the height and the width."""
    given = {field.name for field, _ in param.ListFields()}
    fields = [f"{sides or name}_{side}" for side in "hw"]
    if given & set(fields):
        return [getattr(param, field) for field in fields]
    value = list(getattr(param, f"{name}s", [])) or getattr(param, name)
    return [value] if isinstance(value, int) else list(value)


def _joined(sides: Sequence[int]) -> str:
    return "x".join(map(str, sides if len(set(sides)) > 1 else sides[:1]))


def choose_color_by_layertype(layertype: str) -> str:
    """Return the colour of a layer's box."""
    kind = types.get(layertype, Layer)
    if kind.is_loss or "Loss" in layertype:  # some are losses only if the prototxt gives them a weight
        return LOSS
    if (kind.num_bottom == 0 and kind.weight_names == ()) or (kind is Layer and layertype.endswith("Data")):
        return DATA
    return next(COLOURS[base] for base in kind.__mro__ if base in COLOURS)


def get_pydot_graph(
    caffe_net: NetParameter, rankdir: str, label_edges: bool = True, phase: int | None = None, display_lrm: bool = False
) -> None:
    """Raise Error: minicaffe draws without pydot. pycaffe returns a pydot graph here."""
    raise Error('minicaffe makes no pydot graph: draw_net with ext="dot" returns its text, draw_net_to_file writes a picture')


def net_graph(
    caffe_net: NetParameter,
    phase: int | None = None,
    *,
    label_edges: bool = True,
    display_lrm: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """Return the boxes and arrows of a net. phase: leaves out the other phase's layers. shapes: written in the blobs' boxes."""
    net, _ = upgrade_net(caffe_net)
    layers = list(net.layer)
    if phase is not None:
        state = caffe_pb2.NetState(phase=caffe_pb2.Phase.Value("TEST" if phase else "TRAIN"))
        layers = [layer for layer, _ in filter_layers([(layer, None) for layer in layers], state)]
    return _Builder(net.name, label_edges, display_lrm, shapes or {}).build(layers)


class _Builder:
    """A builder of a graph, layer by layer. blobs: the node with each blob's current contents."""

    def __init__(self, title: str, label_edges: bool, display_lrm: bool, shapes: Mapping[str, Sequence[int]]) -> None:
        self.graph = Graph(on_one_line(title))
        self.label_edges, self.display_lrm, self.shapes = label_edges, display_lrm, shapes
        self.blobs: dict[str, int] = {}

    def build(self, layers: Sequence[LayerParameter]) -> Graph:
        nodes: dict[int, Node] = {}
        for i, (layer, host) in enumerate(zip(layers, hosts([(layer.bottom, layer.top) for layer in layers]), strict=True)):
            lines = get_layer_label(layer, display_lrm=self.display_lrm).split("\n")
            if host is None:
                nodes[i] = self._add(layer, lines)
            else:
                nodes[host].lines += [f"{lines[0]}  {lines[1]}", *lines[2:]]
        return self.graph

    def _add(self, layer: LayerParameter, lines: list[str]) -> Node:
        label = get_edge_label(layer) if self.label_edges else ""
        label += " outputs" * label.isdigit()
        node = self._node(Node([*lines, label] if label else lines, choose_color_by_layertype(layer.type)))
        for name in layer.bottom:
            blob = self._blob(name) if name not in self.blobs else self.blobs[name]
            self.graph.edges.append((blob, node))
        for name in layer.top:
            again = name in self.blobs and not layer.bottom  # another phase's data layer made the same blob
            blob = self.blobs[name] if again else self._blob(name)
            self.graph.edges.append((node, blob))
        return self.graph.nodes[node]

    def _blob(self, name: str) -> int:
        shape = self.shapes.get(name)
        lines = [on_one_line(name)] + ([" x ".join(map(str, shape))] if shape is not None else [])
        self.blobs[name] = self._node(Node(lines, BLOB, round=True))
        return self.blobs[name]

    def _node(self, node: Node) -> int:
        self.graph.nodes.append(node)
        return len(self.graph.nodes) - 1


def draw_net(
    caffe_net: NetParameter,
    rankdir: str,
    ext: str = "png",
    phase: int | None = None,
    display_lrm: bool = False,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> bytes:
    """Return the picture of a net in the format ext: "svg", "png", "pdf", or Graphviz's text as "dot" or "gv".

    rankdir: TB (down), BT (up), LR (right), RL (left). Raises Error.
    """
    if rankdir not in DIRECTIONS:
        raise Error(f"rankdir must be one of {', '.join(DIRECTIONS)}, got {rankdir!r}")
    texts = {"svg": svg, "dot": dot, "gv": dot}
    if ext not in texts and ext not in ("png", "pdf"):
        raise Error(f"a net is drawn as .svg, .png, .pdf or .dot, not as .{ext}")
    graph = net_graph(caffe_net, phase, display_lrm=display_lrm, shapes=shapes)
    return texts[ext](graph, rankdir).encode() if ext in texts else bitmap(graph, rankdir, ext)


def draw_net_to_file(
    caffe_net: NetParameter,
    filename: str | os.PathLike[str],
    rankdir: str = "LR",
    phase: int | None = None,
    display_lrm: bool = False,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Write the picture of a net. The suffix selects the format: .svg, .png, .pdf, .dot or .gv. Raises Error."""
    ext = Path(filename).suffix[1:].lower()
    picture = draw_net(caffe_net, rankdir, ext, phase, display_lrm, shapes=shapes)
    with replacing(filename) as temporary:
        temporary.write_bytes(picture)
