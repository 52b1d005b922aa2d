"""Draw a net as SVG, PNG, PDF or Graphviz's text, with the functions of pycaffe's caffe.draw but without Graphviz.

    draw_net_to_file(net_param, "net.svg", rankdir="TB")        # `minicaffe draw net.prototxt net.svg` on the command line

Layers are boxes, blobs are round; an in-place layer is in the box of the layer whose blob it overwrites.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

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

from .draw_picture import Graph, Node, bitmap, dot, svg

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


def get_pooling_types_dict() -> dict[int, str]:
    """The names of pooling_param.pool's values."""
    return {value.number: value.name for value in caffe_pb2.PoolingParameter.PoolMethod.DESCRIPTOR.values}


def get_edge_label(layer: LayerParameter) -> str:
    """The label of the arrow from a layer to its top: a data layer's batch size, or the number of outputs."""
    if layer.HasField("data_param"):
        return f"batch {layer.data_param.batch_size}"
    return str(getattr(layer, block).num_output) if (block := linear_block(layer)) else ""


def get_layer_lr_mult(layer: LayerParameter) -> str:
    """The learning rate multipliers of a layer with weights and a bias: "lr 1, 2"."""
    if not linear_block(layer):
        return ""
    return "lr " + ", ".join(f"{param.lr_mult:g}" for param in layer.param) if layer.param else "lr 1"


def get_layer_label(layer: LayerParameter, rankdir: str = "LR", display_lrm: bool = False) -> str:
    """The lines in a layer's box: its name, its type with the main parameters, and with display_lrm its multipliers."""
    lines = [on_one_line(layer.name), on_one_line(" ".join(filter(None, [layer.type, _details(layer)])))]
    if display_lrm and get_layer_lr_mult(layer):
        lines.append(get_layer_lr_mult(layer))
    return "\n".join(lines)


def _details(layer: LayerParameter) -> str:
    if issubclass(class_of(layer), Convolution):
        own = layer.convolution_param
        size = "x".join(map(str, own.kernel_size)) if own.kernel_size else f"{own.kernel_h}x{own.kernel_w}"
        return _window(size, own.stride[0] if own.stride else 1, own.pad[0] if own.pad else 0)
    if issubclass(class_of(layer), Pooling):
        pool = layer.pooling_param
        kind = get_pooling_types_dict()[pool.pool]
        return f"{kind} global" if pool.global_pooling else f"{kind} {_window(str(pool.kernel_size), pool.stride, pool.pad)}"
    return f"{layer.python_param.layer}" if layer.type == "Python" else ""


def _window(size: str, stride: int, pad: int) -> str:
    size = size if "x" in size else f"{size}x{size}"
    return size + f" / {stride}" * (stride != 1) + f", pad {pad}" * (pad != 0)


def choose_color_by_layertype(layertype: str) -> str:
    """The colour of a layer's box."""
    kind = types.get(layertype, Layer)
    if kind.is_loss or "Loss" in layertype:  # some are losses only if the prototxt gives them a weight
        return LOSS
    if (kind.num_bottom == 0 and kind.weight_names == ()) or (kind is Layer and layertype.endswith("Data")):
        return DATA
    return next(COLOURS[base] for base in kind.__mro__ if base in COLOURS)


def get_pydot_graph(
    caffe_net: NetParameter, rankdir: str, label_edges: bool = True, phase: int | None = None, display_lrm: bool = False
) -> None:
    """pycaffe returns a pydot graph here. Raises Error: minicaffe draws without pydot."""
    raise Error('minicaffe makes no pydot graph: draw_net with ext="dot" returns its text, draw_net_to_file writes a picture')


def net_graph(
    caffe_net: NetParameter,
    phase: int | None = None,
    *,
    label_edges: bool = True,
    display_lrm: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """The boxes and arrows of a net. phase: omits the layers of the other phase. shapes: written in the blobs."""
    net, _ = upgrade_net(caffe_net)
    layers = list(net.layer)
    if phase is not None:
        state = caffe_pb2.NetState(phase=caffe_pb2.Phase.Value("TEST" if phase else "TRAIN"))
        layers = [layer for layer, _ in filter_layers([(layer, None) for layer in layers], state)]
    return _Builder(net.name, label_edges, display_lrm, shapes or {}).build(layers)


class _Builder:
    """Adds layers one by one. blobs: the node with each blob's current contents; writers: the layer's node of a blob's node."""

    def __init__(self, title: str, label_edges: bool, display_lrm: bool, shapes: Mapping[str, Sequence[int]]) -> None:
        self.graph = Graph(on_one_line(title))
        self.label_edges, self.display_lrm, self.shapes = label_edges, display_lrm, shapes
        self.blobs: dict[str, int] = {}
        self.writers: dict[int, int] = {}
        self.read: set[int] = set()

    def build(self, layers: Sequence[LayerParameter]) -> Graph:
        for layer in layers:
            lines = get_layer_label(layer, display_lrm=self.display_lrm).split("\n")
            host = self._host(layer)
            if host is not None:
                self.graph.nodes[host].lines += [f"{lines[0]}  {lines[1]}", *lines[2:]]
            else:
                self._add(layer, lines)
        return self.graph

    def _host(self, layer: LayerParameter) -> int | None:
        """The layer whose box gets an in-place layer: the one that wrote its blob, unless another layer has read it since."""
        if len(layer.bottom) != 1 or list(layer.top) != list(layer.bottom):
            return None
        blob = self.blobs.get(layer.bottom[0])
        return None if blob is None or blob in self.read else self.writers.get(blob)

    def _add(self, layer: LayerParameter, lines: list[str]) -> None:
        label = get_edge_label(layer) if self.label_edges else ""
        label += " outputs" * label.isdigit()
        node = self._node(Node([*lines, label] if label else lines, choose_color_by_layertype(layer.type)))
        for name in layer.bottom:
            blob = self._blob(name) if name not in self.blobs else self.blobs[name]
            self.graph.edges.append((blob, node))
            self.read.add(blob)
        for name in layer.top:
            again = name in self.blobs and not layer.bottom  # the same data of another phase
            blob = self.blobs[name] if again else self._blob(name)
            self.graph.edges.append((node, blob))
            if len(layer.top) == 1 and not again:
                self.writers[blob] = node

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
    """Return the picture of a net, as ext: "svg", "png", "pdf", or Graphviz's text as "dot" or "gv". rankdir: TB (down), BT
    (up), LR (right), RL (left). Raises Error."""
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
    """Write the picture of a net; the suffix, .svg, .png, .pdf, .dot or .gv, selects the format. Raises Error."""
    ext = Path(filename).suffix[1:].lower()
    picture = draw_net(caffe_net, rankdir, ext, phase, display_lrm, shapes=shapes)
    with replacing(filename) as temporary:
        temporary.write_bytes(picture)
