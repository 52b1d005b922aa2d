"""A summary of a net: layers, shapes, parameters, multiply-adds, memory."""

from __future__ import annotations

from dataclasses import dataclass

from minicaffe.forked import Forked
from minicaffe.formats.forks import Choice, candidates, grouped
from minicaffe.kernels import description, loops_of
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.shape.split import Split
from minicaffe.net import Net

from .memory import MemoryNeeds, memory_needs


@dataclass(frozen=True)
class LayerSummary:
    """One layer. shapes: of its tops. parameters: elements of its learnable blobs. multiply_adds: with weights, in one forward
    pass; None if the layer's class does not define them. bytes: of the data of tops that share no memory with a bottom."""

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    shapes: list[tuple[int, ...]]
    parameters: int
    multiply_adds: int | None
    bytes: int


@dataclass(frozen=True)
class NetSummary:
    """All layers of a net, in order, with totals; shared weights count once. memory: the peak of a run. forks: a sentence for
    each kind of the types that forks disagree on. loops: a sentence on the layers that can run compiled, or ""."""

    layers: list[LayerSummary]
    parameters: int
    parameter_bytes: int
    memory: MemoryNeeds
    forks: list[str]
    loops: str

    @property
    def multiply_adds(self) -> int:
        """Of the layers whose class defines them."""
        return sum(layer.multiply_adds or 0 for layer in self.layers)

    @property
    def not_counted(self) -> list[str]:
        """The types of the other layers."""
        return sorted({layer.type for layer in self.layers if layer.multiply_adds is None})

    @property
    def blob_bytes(self) -> int:
        """Bytes of all blobs' data: what a forward pass holds besides the weights."""
        return sum(layer.bytes for layer in self.layers)


def summarize(net: Net, rois: int | None = None) -> NetSummary:
    """Summarize a net at its current input shapes; runs no forward pass.

    rois: the number of rois that Proposal gives, by default the most that the settings of its phase allow
    (RPN_POST_NMS_TOP_N). ProposalTarget samples BATCH_SIZE of them; RoIData without an RPN gives BATCH_SIZE.
    """
    _reshape(net, rois)
    counted: set[int] = set()
    layers = []
    for node in net.nodes:
        layer, bottoms, tops = node.layer, node.bottoms, node.tops
        # In-place tops, and views such as Reshape's, need no memory.
        own = [top for top in tops if not any(top is b or top.shares_data_with(b) for b in bottoms) and id(top) not in counted]
        own = [] if isinstance(layer, Split) else own
        counted.update(id(top) for top in own)
        layers.append(
            LayerSummary(
                layer.name,
                layer.type,
                node.bottom_names,
                node.top_names,
                [top.shape for top in tops],
                sum(blob.count for blob in layer.blobs),
                layer.costs(bottoms, tops).multiply_adds,
                sum(top.count * top.dtype.itemsize for top in own),
            )
        )
    parameters = sum(blob.count for blob in net.learnable_params)
    return NetSummary(layers, parameters, parameters * net.dtype.itemsize, memory_needs(net), _forks(net), _loops(net))


def _forks(net: Net) -> list[str]:
    """The choices that were made, and those that are left to the weights."""
    chosen = list(net.forks.items())
    for layer in net.layers:
        if isinstance(layer, Forked) and layer.is_ambiguous:
            chosen.append((layer.name, Choice(layer.type, candidates(layer.kinds), "its weights will tell")))
    return grouped(chosen)


def _loops(net: Net) -> str:
    able = [layer.type for layer in net.layers if any(loops_of(layer))]
    if not able:
        return ""
    layers = f"{len(able)} of {len(net.layers)} layers ({', '.join(sorted(set(able)))})"
    return f"loops of {layers}: {description()}"


def _reshape(net: Net, rois: int | None) -> None:
    """Reshape all layers; tops of rois get the number of rois of an image."""
    for node in net.nodes:
        node.layer.reshape_pass(node.bottoms, node.tops)
        if isinstance(node.layer, DynamicTops) and node.layer.dynamic_rois:
            node.layer.assume_rois(node.bottoms, node.tops, rois)
