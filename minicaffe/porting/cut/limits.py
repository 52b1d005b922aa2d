"""The limits of fields and sizes that the targets' documents name, beside the types that they list (targets.py).

| target | document | limits |
|---|---|---|
| bvlc | BVLC/caffe, master at 9b89154: src/caffe/proto/caffe.proto | fields that other repositories added |
| opencv | OpenCV 4.x: modules/dnn/src/layers/pooling_layer.cpp | Pooling |
| cann | Ascend CANN 8.0.0, operator library, "Supported Caffe Operators": the overview and the page of each operator; CANN \
8.0.RC3 for Convolution and Eltwise | the sizes of maps; BatchNorm, Convolution, Deconvolution, Eltwise, InnerProduct, LRN, \
Pooling, Reshape, Slice |
| rknn | Rockchip RKNN Toolkit2 1.6.0, RKNN-Toolkit2_OP_Support: its table for Caffe, and for ONNX where that refers to it | \
ConvolutionDepthwise, Proposal, Reduction, Softmax, Tile |

Limits that depend on the chip's memory, and those that the documents leave open, are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from minicaffe.formats.forks import fork_fields
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.lrn import LRN, WITHIN_CHANNEL
from minicaffe.layers.pool.pooling import AVE, Pooling
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.shape.concat import Slice
from minicaffe.layers.shape.reduction import Reduction, Tile
from minicaffe.layers.shape.reshape import Reshape
from minicaffe.net import Net
from minicaffe.registry import Table

from .targets import lacks

Shape = tuple[int, ...]
Beyond = Iterator[tuple[str, str]]
"""Fields, and what is beyond a limit: ("pooling_param.stride", "64, at most 63")."""
Limit = Callable[[Layer, Sequence[Shape], Sequence[Shape]], Beyond]
"""Of a layer and the shapes of its bottoms and tops."""

LONGEST_SIDE = 4096
"""Of a map on CANN, where nothing else is said of the operator."""

opencv: Table[Limit] = Table("the limits of --target opencv", "minicaffe.porting.cut")
cann: Table[Limit] = Table("the limits of --target cann", "minicaffe.porting.cut")
rknn: Table[Limit] = Table("the limits of --target rknn", "minicaffe.porting.cut")


def beyond_limits(net: Net, target: str) -> Iterator[tuple[Layer, str, str]]:
    """The layers with something beyond a limit of the target, the field or blob, and what is wrong. Not of types that the
    target lacks."""
    table = {"opencv": opencv, "cann": cann, "rknn": rknn}.get(target)
    for node in net.nodes:
        if lacks(target, node.layer.param):
            continue
        bottoms, tops = ([blob.shape for blob in blobs] for blobs in (node.bottoms, node.tops))
        limit = table.get(type(node.layer)) if table else None
        found = [*(limit(node.layer, bottoms, tops) if limit else ())]
        if target == "bvlc":
            found += _foreign_fields(node.layer.param, "")
        if target == "cann":
            found += _long_sides(node.top_names, tops)
        yield from ((node.layer, field, says) for field, says in found)


@cache
def _added() -> frozenset[tuple[str, str]]:
    """The messages and fields of the schema that BVLC's lacks."""
    return frozenset((field.message, field.name) for field in fork_fields() if field.effect.in_schema)


def _foreign_fields(message: Any, place: str) -> Beyond:
    """The fields that are set and that BVLC's schema lacks."""
    for field, value in message.ListFields():
        path = f"{place}{field.name}"
        if (message.DESCRIPTOR.name, field.name) in _added():
            yield path, "a field that its caffe.proto lacks"
        elif field.message_type is not None:
            for inner in value if isinstance(value, Sequence) else [value]:
                yield from _foreign_fields(inner, f"{path}.")


def _long_sides(names: Sequence[str], tops: Sequence[Shape]) -> Beyond:
    for name, shape in zip(names, tops, strict=True):
        if len(shape) == 4 and max(shape[2:]) > LONGEST_SIDE:
            yield f'blob "{name}"', f"{_times(shape)}, at most {LONGEST_SIDE} high and wide"


@opencv(Pooling)
def pooling_method(layer: Pooling, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.pooling_param
    if param.pool not in (param.MAX, param.AVE):
        yield "pooling_param.pool", f"{param.PoolMethod.Name(param.pool)}, MAX or AVE only"


@cann(Pooling)
def cann_pooling(layer: Pooling, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    yield from pooling_method(layer, bottoms, tops)
    if layer.param.pooling_param.global_pooling:
        return
    (high, wide), stride, pad = layer.sizes
    if max(stride) > 63:
        yield "pooling_param.stride", f"{_times(stride)}, at most 63"
    if stride[0] > 2 * high or stride[1] > 2 * wide:
        yield "pooling_param.stride", f"{_times(stride)}, at most twice the kernel of {high}x{wide}"
    width = bottoms[0][3]
    if layer.method == AVE and width + 2 * pad[1] > wide:
        if max(high, wide) > 255:
            yield "pooling_param.kernel_size", f"{high}x{wide}, at most 255 for AVE"
        room = high * wide * 32 + width * (31 * stride[0] + wide)
        if room > 32768:
            formula = "kernel_h kernel_w 32 + width (31 stride_h + kernel_w)"
            yield (
                "pooling_param.kernel_size",
                f"{high}x{wide} on a width of {width}: {formula} is {room}, at most 32768 for AVE",
            )


@cann(Convolution)
def cann_convolution(layer: Convolution, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if max(layer.window.kernel) > 255:
        yield "convolution_param.kernel_size", f"{_times(layer.window.kernel)}, at most 255"


@cann(Deconvolution)
def cann_deconvolution(layer: Deconvolution, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if layer.spatial_axes != 2:
        return
    (high, wide), window = bottoms[0][2:], layer.window
    stride = window.stride
    if stride[0] * stride[1] >= 256:
        yield "convolution_param.stride", f"{_times(stride)}, whose product is at most 255"
    if high + 2 * window.pad[0] < window.extent[0] or wide + 2 * window.pad[1] < window.extent[1]:
        says = f"{_times(window.kernel)}, at most the padded map: {high}x{wide} with {_times(window.pad)} on each side"
        yield "convolution_param.kernel_size", says
    longest = max(high * stride[0], wide * stride[1])
    if window.kernel == (1, 1):
        longest = max(longest, wide * stride[0] * stride[1])
        if max(stride) > 1 and wide > 2032:
            yield "bottom[0]", f"{_times(bottoms[0])}, at most 2032 wide for a kernel of 1x1 with a stride"
    if longest > LONGEST_SIDE:
        yield "convolution_param.stride", f"{_times(stride)} on a map of {high}x{wide}: {longest}, at most {LONGEST_SIDE}"


@cann(BatchNorm)
def cann_batch_norm(layer: BatchNorm, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.batch_norm_param
    if param.HasField("use_global_stats") and not param.use_global_stats:
        yield "batch_norm_param.use_global_stats", "false, true only"


@cann(InnerProduct)
def cann_inner_product(layer: InnerProduct, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.inner_product_param
    if param.num_output > 32768:
        yield "inner_product_param.num_output", f"{param.num_output}, at most 32768"
    if layer.axis not in (1, 2):
        yield "inner_product_param.axis", f"{param.axis}, 1 or 2 only"


@cann(LRN)
def cann_lrn(layer: LRN, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.lrn_param
    if param.local_size > 255:
        yield "lrn_param.local_size", f"{param.local_size}, at most 255"
    if param.norm_region == WITHIN_CHANNEL:
        yield "lrn_param.norm_region", "WITHIN_CHANNEL, ACROSS_CHANNELS only"


@cann(Eltwise)
def cann_eltwise(layer: Eltwise, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if len(bottoms) > 32:
        yield "bottom", f"{len(bottoms)} of them, at most 32"


@cann(Slice)
def cann_slice(layer: Slice, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if len(tops) > 32:
        yield "slice_param.slice_point", f"{len(tops) - 1} of them for {len(tops)} tops, at most 31"


@cann(Reshape)
def cann_reshape(layer: Reshape, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param, axes = layer.param.reshape_param, len(bottoms[0])
    if not -axes <= param.axis < axes:
        yield "reshape_param.axis", f"{param.axis}, from {-axes} to {axes - 1} for {axes} axes"
    if param.num_axes >= axes:
        yield "reshape_param.num_axes", f"{param.num_axes}, at most {axes - 1} for {axes} axes; -1 is all of them"


@rknn(DepthwiseConvolution)
def rknn_depthwise(layer: DepthwiseConvolution, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if max(layer.window.kernel) > 8:
        yield "convolution_param.kernel_size", f"{_times(layer.window.kernel)}, at most 8"


@rknn(Proposal, Softmax, Tile)
def one_image(layer: Layer, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if bottoms[0][0] != 1:
        yield "bottom[0]", f"{_times(bottoms[0])}, a batch of 1 only"


@rknn(Reduction)
def rknn_reduction(layer: Reduction, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if len(tops[0]) > 4:
        yield "reduction_param.axis", f"a top of {len(tops[0])} axes, at most 4"


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
