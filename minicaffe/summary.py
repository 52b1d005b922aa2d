"""What a net is made of: layers, shapes, parameters, multiply-adds, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .blob import Blob
from .layer import Layer
from .layers.proposal import Proposal
from .layers.proposal_target import ProposalTarget
from .layers.recurrent import Recurrent
from .layers.roi_data import RoIData
from .memory_needs import MemoryNeeds, memory_needs
from .net import Net
from .settings import current


@dataclass(frozen=True)
class LayerSummary:
    """One layer. shapes: of its tops. parameters: elements of its learnable blobs. multiply_adds: of one forward pass.
    bytes: the data of tops that share no memory with a bottom, without diffs."""

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    shapes: list[tuple[int, ...]]
    parameters: int
    multiply_adds: int
    bytes: int


@dataclass(frozen=True)
class NetSummary:
    """All layers of a net, in order, with totals; shared weights count once. memory: what a run takes at its most."""

    layers: list[LayerSummary]
    parameters: int
    parameter_bytes: int
    memory: MemoryNeeds

    @property
    def multiply_adds(self) -> int:
        return sum(layer.multiply_adds for layer in self.layers)

    @property
    def blob_bytes(self) -> int:
        """Bytes of all blobs' data: what a forward pass holds beside the weights."""
        return sum(layer.bytes for layer in self.layers)


ROIS = 300
"""How many rois there are taken to be where nothing limits them."""


def summarize(net: Net, rois: int | None = None) -> NetSummary:
    """Summarize a net at its current input shapes; runs no forward pass.

    rois: how many its Proposal is taken to give, by default the most that the settings of its phase let through
    (RPN_POST_NMS_TOP_N). ProposalTarget samples BATCH_SIZE of them; RoIData without an RPN gives BATCH_SIZE.
    """
    _reshape(net, rois)
    counted: set[int] = set()
    layers = []
    for node in net.nodes:
        layer, bottoms, tops = node.layer, node.bottoms, node.tops
        own = [top for top in tops if not any(top is b or top.shares_data_with(b) for b in bottoms) and id(top) not in counted]
        own = [] if layer.param.type == "Split" else own
        counted.update(id(top) for top in own)
        layers.append(
            LayerSummary(
                layer.name,
                layer.param.type,
                node.bottom_names,
                node.top_names,
                [top.shape for top in tops],
                sum(blob.count for blob in layer.blobs),
                multiply_adds(layer, bottoms, tops),
                sum(top.count * top.dtype.itemsize for top in own),
            )
        )
    parameters = sum(blob.count for blob in net.learnable_params)
    return NetSummary(layers, parameters, parameters * net.dtype.itemsize, memory_needs(net))


def makes_rois(layer: Layer) -> bool:
    """Whether it is only known after a forward pass how many rois the layer gives."""
    return isinstance(layer, Proposal | ProposalTarget) or (isinstance(layer, RoIData) and not layer.has_rpn)


def _reshape(net: Net, rois: int | None) -> None:
    """Carry the shapes through all layers; tops of rois get as many as an image would give."""
    for node in net.nodes:
        layer, bottoms, tops = node.layer, node.bottoms, node.tops
        layer.reshape_pass(bottoms, tops)
        if makes_rois(layer):
            count = _roi_count(layer, bottoms, rois)
            for top in tops[1:] if isinstance(layer, RoIData) else tops:
                top.reshape(count, *top.shape[1:])


def _roi_count(layer: Layer, bottoms: list[Blob], rois: int | None) -> int:
    if isinstance(layer, Proposal):
        return rois or max(layer.limits.post_nms_top_n, 0) or ROIS
    if isinstance(layer, ProposalTarget):
        batch, given = layer.settings.batch_size, bottoms[0].shape[0]
    else:
        batch = current().train.batch_size
        given = rois or max(batch, 0) or ROIS
    return min(batch, given) if batch > 0 else given


def multiply_adds(layer: Layer, bottoms: list[Blob], tops: list[Blob]) -> int:
    """Multiply-adds of the layers that multiply by weights; 0 for others."""
    if layer.type in ("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "InnerProduct") and layer.blobs:
        outputs = layer.param.convolution_param.num_output or layer.param.inner_product_param.num_output
        return sum(top.count for top in tops) * (layer.blobs[0].count // outputs if outputs else 0)
    if layer.param.type == "Deconvolution" and layer.blobs:
        return sum(bottom.count for bottom in bottoms) * math.prod(layer.blobs[0].shape[1:])
    if isinstance(layer, Recurrent):
        steps, streams = bottoms[1].count, bottoms[1].shape[1]
        matrices = [(i, blob.count) for i, blob in enumerate(layer.blobs) if len(blob.shape) == 2]
        return sum(count * (streams if layer.static and i == 2 else steps) for i, count in matrices)
    if layer.param.type in ("Scale", "BatchNorm"):
        return sum(top.count for top in tops)
    return 0
