"""Known causes of differences: how other frameworks compute a layer of this type, as changes to try.

Each function yields Variants of a layer; walk.py runs them and names those that give B's values. direct_causes are those that
the two arrays show without recomputing a layer. The words are about B.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_transform_inv, clip_boxes, large_enough
from minicaffe.errors import in_brackets
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.data.input import Input
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.elementwise.scale import Scale
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.neuron.relu import ReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import BVLC
from minicaffe.layers.norm.lrn import LRN, WITHIN_CHANNEL
from minicaffe.layers.norm.mvn import MVN
from minicaffe.layers.norm.normalize import Normalize
from minicaffe.layers.pool.pooling import AVE, MAX, Pooling
from minicaffe.layers.pool.pooling_windows import counts_padding, is_average, rounds_down
from minicaffe.layers.proposal.anchors import by_position, shifted_anchors
from minicaffe.layers.proposal.nms import nms
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.shape.concat import Concat
from minicaffe.mode import TEST
from minicaffe.parameters import weight_name
from minicaffe.proto import caffe_pb2

from .result import Tolerance
from .trial import Change, Trial, Variant, channels_last, interleaved, of_blob, of_bottom, of_bottoms, of_top, parameter

EPSILONS = (1e-5, 1e-3, 1e-4, 2e-5, 1e-6, 1e-8, 1e-10, 1e-12, 0.0)
MEANS = ((102.9801, 115.9465, 122.7717), (104.0, 117.0, 123.0), (103.939, 116.779, 123.68), (127.5, 127.5, 127.5))
"""Blue, green, red."""


def variants(layer: Layer, is_first: bool) -> Iterator[Variant]:
    """Yield variants that B may compute in place of layer. is_first: the layer reads an input of the net."""
    if type(layer) in BY_CLASS:
        yield from BY_CLASS[type(layer)](layer)
    if isinstance(layer, RoiLayer):
        yield from regions(layer)
    if len(layer.blobs) > 1 and weight_name(layer, 1) == "bias":
        yield Variant("its bias is missing", of_blob(1, np.zeros_like))
    if is_first:
        yield from _image_variants()
    if not (layer.elementwise or isinstance(layer, Input | Concat)):
        yield Variant("its input is read in the order N, H, W, C", of_bottoms(channels_last))


# Images.


def _image_variants() -> Iterator[Variant]:
    yield Variant("the channels of its image are in the other order (RGB and BGR swapped)", of_bottom(0, _swapped))
    for scale in (1 / 255, 255.0, 1 / 127.5, 1 / 128, 0.017, 1 / 256, 0.007843):
        yield Variant(f"its image is scaled by {scale:.6g}", of_bottom(0, partial(np.multiply, scale)))
    for mean, sign, swap in itertools.product(MEANS, (1, -1), (False, True)):
        words = "is not subtracted" if sign > 0 else "is subtracted (once more)"
        also = ", and RGB and BGR are swapped" if swap else ""
        shift = partial(_shifted, by=[sign * value for value in mean], swap=swap)
        yield Variant(f"the mean ({', '.join(map(str, mean))}) {words}{also}", of_bottom(0, shift))


def _image(x: Array) -> Array:
    """Return x. Raises ValueError unless it is an image, or weights that read one."""
    if x.ndim != 4 or x.shape[1] != 3:
        raise ValueError("not an image")
    return x


def _swapped(x: Array) -> Array:
    return np.ascontiguousarray(_image(x)[:, ::-1])


def _shifted(x: Array, by: Sequence[float], swap: bool) -> Array:
    shifted: Array = _image(x) + np.array(by, x.dtype)[:, None, None]
    return _swapped(shifted) if swap else shifted


# By type.


def _convolution(layer: Any) -> Iterator[Variant]:
    param = layer.param.convolution_param
    dilation = list(layer.window.dilation)
    if any(d > 1 for d in dilation):
        ones = {"dilation": [1] * len(dilation), "hole": None, "hole_h": None, "hole_w": None}
        yield Variant("its dilation is ignored", parameter("convolution_param", **ones))
        kernel, pad = list(param.kernel_size), list(param.pad)
        if kernel and pad and pad[0] == dilation[0] * (kernel[0] - 1) // 2:
            smaller = parameter("convolution_param", **ones, pad=[(kernel[0] - 1) // 2])
            yield Variant("its dilation is ignored, and its pad made smaller to fit", smaller)
    yield Variant("the channels of its weights are in the other order (RGB and BGR swapped)", of_blob(0, _swapped))
    weight = layer.blobs[0].shape
    if len(weight) == 4:
        if weight[2] == weight[3] > 1:
            yield Variant("its kernels are transposed (width before height)", of_blob(0, lambda w: w.swapaxes(2, 3)))
        if max(weight[2:]) > 1:
            flipped = of_blob(0, lambda w: w[:, :, ::-1, ::-1])
            yield Variant("its kernels are flipped (a convolution, not a correlation)", flipped)
        if weight[0] == weight[1]:
            yield Variant("its weights are transposed (inputs before outputs)", of_blob(0, lambda w: w.swapaxes(0, 1)))
    yield Variant("its pad is at the end only (TensorFlow's SAME)", _same_padding)
    if param.group > 1:
        yield Variant("its groups are interleaved", of_bottom(0, lambda x: interleaved(x, param.group)))


def _same_padding(trial: Trial) -> None:
    """Move the image by one pixel towards the start, as if all padding were after it."""
    pads = list(trial.param.convolution_param.pad) or [trial.param.convolution_param.pad_h]
    if pads[0] < 1:
        raise ValueError("no pad")
    of_bottom(0, lambda x: np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)))[:, :, 1:, 1:])(trial)


def _inner_product(layer: Layer) -> Iterator[Variant]:
    n, k = layer.blobs[0].shape
    yield Variant("its weights are transposed", of_blob(0, lambda w: np.ascontiguousarray(w.T).reshape(n, k)))
    if n != k:
        yield Variant("its weights are stored transposed (inputs before outputs)", of_blob(0, lambda w: w.reshape(k, n).T))


def _pooling(layer: Layer) -> Iterator[Variant]:
    param = layer.param.pooling_param
    floor = rounds_down(layer, param)
    mode = caffe_pb2.PoolingParameter.CEIL if floor else caffe_pb2.PoolingParameter.FLOOR
    other_way = {"round_mode": mode, "ceil_mode": None}
    words = "up (ceil), as Caffe does" if floor else "down (floor), where Caffe rounds up (ceil)"
    yield Variant(f"the number of its windows is rounded {words}", parameter("pooling_param", **other_way))
    average = is_average(param)
    other, words = (MAX, "maximum of a window, not its mean") if average else (AVE, "mean of a window, not its maximum")
    for also, extra in (("", {}), (", and the number of its windows is rounded the other way", other_way)):
        if average and counts_padding(param):
            yield Variant(f"its means leave out the padding{also}", partial(_without_padding, extra))
        yield Variant(f"it takes the {words}{also}", parameter("pooling_param", pool=other, **extra))


def _without_padding(extra: dict[str, Any], trial: Trial) -> None:
    """Divide the layer's result by the same pooling of ones. extra: fields to set."""
    parameter("pooling_param", **extra)(trial)

    def tweak(layer: Layer) -> None:
        pool = layer.forward

        def forward(bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
            x = bottom[0].data.copy()
            bottom[0].data[...] = 1
            pool(bottom, top)
            ones = top[0].data.copy()  # the share of each window that lies on the map
            bottom[0].data[...] = x
            pool(bottom, top)
            top[0].data[...] /= ones

        layer.forward = forward  # type: ignore[method-assign]

    trial.tweak = tweak


def _lrn(layer: Layer) -> Iterator[Variant]:
    param = layer.param.lrn_param
    within = param.norm_region == WITHIN_CHANNEL
    size = param.local_size ** (2 if within else 1)
    alphas = [
        (param.alpha, ""), (param.alpha * size, "its alpha is not divided by local_size"),
        (param.alpha / size, "its alpha is divided by local_size twice"),
    ]  # fmt: skip
    # dict.fromkeys keeps each k once, the net's first
    for (alpha, first), k in itertools.product(alphas, dict.fromkeys((param.k, 1.0, 2.0, 0.0))):
        second = "" if k == param.k else f"its k is {k:g}, not {param.k:g}"
        if first or second:
            yield Variant(" and ".join(filter(None, [first, second])), parameter("lrn_param", alpha=alpha, k=k))
    region = caffe_pb2.LRNParameter.ACROSS_CHANNELS if within else WITHIN_CHANNEL
    words = "across channels, not within each" if within else "within each channel, not across them"
    yield Variant(f"it normalises {words}", parameter("lrn_param", norm_region=region))


def _batch_norm(layer: Any) -> Iterator[Variant]:
    if layer.layout == BVLC:
        yield Variant("the factor of its statistics (its third blob) is ignored", partial(_without_factor, [0, 1]))
    for name, index in (("mean", 0), ("variance", 1)) if layer.layout == BVLC else ():
        yield Variant(f"the factor (its third blob) is ignored in its {name}", partial(_without_factor, [index]))
    yield from _epsilons("batch_norm_param", layer.param.batch_norm_param.eps)
    stored = layer.phase == TEST
    if layer.param.batch_norm_param.HasField("use_global_stats"):
        stored = layer.param.batch_norm_param.use_global_stats
    words = "the statistics of the batch, not the stored ones" if stored else "the stored statistics, not those of the batch"
    yield Variant(f"it uses {words}", parameter("batch_norm_param", use_global_stats=not stored))


def _without_factor(indices: Sequence[int], trial: Trial) -> None:
    factor = trial.blobs[2].reshape(-1)[0]
    if factor in (0, 1):  # 1 changes nothing; with 0 the statistics count as 0
        raise ValueError("nothing to change")
    for i in indices:
        trial.blobs[i] = trial.blobs[i] * factor


def _epsilons(block: str, given: float) -> Iterator[Variant]:
    for eps in EPSILONS:
        if not np.isclose(eps, given, rtol=1e-3, atol=0):
            yield Variant(f"its eps is {eps:g}, not {given:g}", parameter(block, eps=eps))


def _mvn(layer: Layer) -> Iterator[Variant]:
    yield from _epsilons("mvn_param", layer.param.mvn_param.eps)
    across = layer.param.mvn_param.across_channels
    yield Variant(f"across_channels is {str(not across).lower()}", parameter("mvn_param", across_channels=not across))


def _relu(layer: Layer) -> Iterator[Variant]:
    for slope in (0.0, 0.01, 0.1, 0.2, 1.0):
        if slope != layer.param.relu_param.negative_slope:
            words = "it is missing" if slope == 1 else f"its negative_slope is {slope:g}"
            yield Variant(words, parameter("relu_param", negative_slope=slope))


def _softmax(layer: Layer) -> Iterator[Variant]:
    for axis in (1, -1, 0, 2):
        if axis != layer.param.softmax_param.axis:
            yield Variant(f"its axis is {axis}", parameter("softmax_param", axis=axis))
    yield Variant("it is missing", of_top(lambda x, y: x))


def _dropout(layer: Layer) -> Iterator[Variant]:
    ratio = layer.param.dropout_param.dropout_ratio
    yield Variant("it is scaled by 1 - ratio in TEST", of_top(lambda x, y: y * (1 - ratio)))
    yield Variant("it is divided by 1 - ratio in TEST", of_top(lambda x, y: y / (1 - ratio or 1)))


def _eltwise(layer: Layer) -> Iterator[Variant]:
    param = layer.param.eltwise_param
    if param.coeff:
        yield Variant("its coeff is ignored", parameter("eltwise_param", coeff=[]))
    for name, value in caffe_pb2.EltwiseParameter.EltwiseOp.items():
        if value != param.operation and not (param.coeff and name != "SUM"):
            yield Variant(f"its operation is {name}", parameter("eltwise_param", operation=value))


# Regions and proposals.


def _columns(order: Sequence[int]) -> Change:
    return of_bottom(1, lambda rois: rois.reshape(len(rois), 5)[:, list(order)])


def regions(layer: Layer) -> Iterator[Variant]:
    """Yield the variants of a layer that pools rois."""
    yield Variant("the columns of its rois are batch index, y1, x1, y2, x2", _columns((0, 2, 1, 4, 3)))
    yield Variant("the columns of its rois are x1, y1, x2, y2, batch index", _columns((4, 0, 1, 2, 3)))
    yield Variant("its rois' x2 and y2 are exclusive (boxes without the + 1)", _moved(0, 0, -1, -1))
    yield Variant("its rois' x2 and y2 are one pixel too large (boxes with + 1 twice)", _moved(0, 0, 1, 1))
    given = {descriptor.name: block for descriptor, block in layer.param.ListFields()}
    scale = next((given[name].spatial_scale for name in layer.param_block if name in given), 0)
    for pixels in (0.5, -0.5):
        if scale:
            moved = _moved(*[pixels / scale] * 4)
            yield Variant(f"its rois are moved by {-pixels:+} pixel of the map (half-pixel centres)", moved)
    if isinstance(layer, PSROILayer):
        group = layer.param.psroi_pooling_param.group_size or layer.param.psroi_align_param.group_size
        reordered = of_bottom(0, partial(interleaved, groups=group * group))
        yield Variant("its channels are ordered bin before class", reordered)
    if isinstance(layer, ROIAlign) and not isinstance(layer, ROIAlignGrid):
        aligned = layer.param.roi_align_param.aligned
        words = "not moved" if aligned else "moved (aligned)"
        yield Variant(f"its samples are {words} by half a pixel", parameter("roi_align_param", aligned=not aligned))
        for ratio in (0, 1, 2, 4):
            if ratio != layer.param.roi_align_param.sampling_ratio:
                yield Variant(f"its sampling_ratio is {ratio}", parameter("roi_align_param", sampling_ratio=ratio))


def _moved(*by: float) -> Change:
    """Return a change that moves x1, y1, x2 and y2 of the rois by these amounts."""
    return of_bottom(1, lambda rois: rois.reshape(len(rois), 5) + np.array([0, *by], rois.dtype))


def proposals(layer: Layer) -> Iterator[Variant]:
    """Yield the variants of a Proposal."""
    if layer.param.HasField("proposal_param"):
        return

    def without(flags: tuple[bool, ...], trial: Trial) -> None:
        trial.tweak = lambda made: _propose_without_one(made, *flags)

    words = ("when its boxes are decoded", "in the areas of its NMS", "when its boxes are clipped")
    for flags in itertools.product((True, False), repeat=3):
        if any(flags):
            where = "" if all(flags) else " " + " and ".join(word for word, flag in zip(words, flags) if flag)
            yield Variant(f"its boxes have no + 1{where}", partial(without, flags))
    yield Variant("its foreground scores come first", of_bottom(0, lambda x: np.roll(x, x.shape[1] // 2, axis=1)))


def _propose_without_one(layer: Layer, decoding: bool, overlaps: bool, clipping: bool) -> None:
    """Make a Proposal layer compute with widths x2 - x1. The functions for boxes add 1, so their boxes get 1 less."""
    assert isinstance(layer, Proposal)
    proposal = layer

    def forward(bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        info = bottom[2].data.reshape(-1)[:3]
        scores = by_position(bottom[0].data[:, len(proposal.anchors) :], 1)[:, 0]
        deltas = by_position(bottom[1].data, 4)
        height, width = bottom[0].shape[2:]
        anchors = shifted_anchors(proposal.anchors, height, width, proposal.stride).copy()
        anchors[:, 2:] -= decoding  # a bool: moves the last corner by 1 if set
        boxes = clip_boxes(bbox_transform_inv(anchors, deltas), info[:2] + clipping)
        limits = proposal.limits
        order = np.flatnonzero(large_enough(boxes, limits.min_size * info[2]))
        order = order[np.argsort(-scores[order], kind="stable")][: max(limits.pre_nms_top_n, 0) or None]
        dets = np.column_stack([boxes[order], scores[order]])
        dets[:, 2:4] -= overlaps
        best = order[nms(dets, limits.nms_threshold, max(limits.post_nms_top_n, 0))]
        top[0].reshape(len(best), 5)
        top[0].data[:, 0], top[0].data[:, 1:] = 0, boxes[best]

    layer.forward = forward  # type: ignore[method-assign]


BY_CLASS: dict[type[Layer], Callable[[Layer], Iterable[Variant]]] = {
    BatchNorm: _batch_norm,
    Concat: lambda _: [Variant("its bottoms are in the other order", of_bottoms(lambda arrays: arrays[::-1]))],
    Convolution: _convolution,
    Deconvolution: _convolution,
    DepthwiseConvolution: _convolution,
    Dropout: _dropout,
    Eltwise: _eltwise,
    InnerProduct: _inner_product,
    LRN: _lrn,
    MVN: _mvn,
    Normalize: lambda layer: _epsilons("norm_param", layer.param.norm_param.eps),
    Pooling: _pooling,
    Proposal: proposals,
    ReLU: _relu,
    Scale: lambda _: [Variant("its factors are missing", of_blob(0, np.ones_like))],
    Softmax: _softmax,
}


# Without recomputing.


def direct_causes(a: Array, b: Array, tolerance: Tolerance) -> Iterator[str]:
    """Yield the known changes of a that give b, as text."""
    for words, made in _made(a, b):
        if made.shape == b.shape and tolerance.agree(made, b):
            yield words


def _made(a: Array, b: Array) -> Iterator[tuple[str, Array]]:
    if a.size == b.size and 2 <= a.ndim == b.ndim <= 4:
        for axes in itertools.permutations(range(a.ndim)):
            if axes != tuple(range(a.ndim)) and a.transpose(axes).shape == b.shape:
                back = ",".join(map(str, np.argsort(axes)))
                way = in_brackets("write this order in --map")
                yield f"its axes have another order: A's are B's {back}{way}", a.transpose(axes)
    if a.shape != b.shape or not a.size:
        return
    yield "A's values below 0 are 0 in B: a ReLU that A lacks or applies later", np.maximum(a, 0)
    if a.ndim == 4 and a.shape[1] == 3:
        yield "its channels are in the other order (RGB and BGR swapped)", a[:, ::-1]
        yield from _images(a, b)
    if a.shape[-1:] == (5,):
        yield "its columns are batch index, y1, x1, y2, x2", a[..., [0, 2, 1, 4, 3]]
        yield "its columns are x1, y1, x2, y2, batch index", a[..., [1, 2, 3, 4, 0]]
        ends = np.array([0, 0, 0, 1, 1], a.dtype)
        yield "its x2 and y2 are exclusive: one more than A's", a + ends
        yield "its x2 and y2 are one less than A's (boxes without the + 1)", a - ends
    if a.ndim == 2 and len(a) > 1:
        order = np.lexsort(b.T[::-1])
        rows = np.empty_like(a)
        # Sort the rows of both. A's sorted rows take the places of B's.
        rows[order] = a[np.lexsort(a.T[::-1])]
        yield "its rows are A's in another order", rows
    square = float((a.astype(np.float64) ** 2).sum())
    factor = float((a.astype(np.float64) * b).sum()) / square if square and np.isfinite(square) else 1.0  # least squares
    if np.isfinite(factor) and factor:
        yield f"it is A's times {factor:.6g}", a * factor


def _images(a: Array, b: Array) -> Iterator[tuple[str, Array]]:
    """Yield changes of image a by a scale and a mean per channel that bring it close to b, in either order of channels."""

    def shown(values: Array) -> str:
        return ", ".join(f"{value:.6g}" for value in values.ravel())

    for words, image in (("", a), (", RGB and BGR swapped", a[:, ::-1])):
        with np.errstate(all="ignore"):
            mean = (b.astype(np.float64) - image).mean(axis=(0, 2, 3), keepdims=True)
            yield f"it is A's plus ({shown(mean)}) in its channels: a mean is not subtracted{words}", image + mean
            centred, theirs = (x - x.mean(axis=(0, 2, 3), keepdims=True, dtype=np.float64) for x in (image, b))
            factor = (centred * theirs).sum() / (centred**2).sum()
            offset = (b - factor * image).mean(axis=(0, 2, 3), keepdims=True)
            yield f"it is A's times {factor:.6g}, plus ({shown(offset)}) in its channels{words}", image * factor + offset
