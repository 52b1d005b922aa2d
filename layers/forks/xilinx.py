"""DeephiResize and FixedNeuron, of the Caffe of Xilinx' Vitis AI (DeePhi), whose nets the DPU runs.

FixedNeuron rounds to fixed-point numbers of bit_width bits with the point at position p:

    y = 2^-p round(x 2^p), halves up, from -2^(bit_width - 1) 2^-p to (2^(bit_width - 1) - 1) 2^-p

Source: Xilinx/Vitis-AI's caffe-xilinx: deephi_resize_layer.cpp, fixed_neuron_layer.cpp, quantize.cpp.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.state_fields import MOST, Fields, State
from minicaffe.layer import Costs, Layer
from minicaffe.layers.neuron.functions import sigmoid
from minicaffe.layers.shape.interp import ClampedTaps, Near, ResizedMaps, Taps, maps_of, sample, scatter
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis

Resizes, Methods = caffe_pb2.DeephiResizeParameter, caffe_pb2.FixedParameter


class DeephiResize(ResizedMaps):
    """x resized to the nearest pixel (the default), or bilinearly, as OpenCV's resize does.

    bottom: x (N, C, H, W). top: y (N, C, OH, OW): new_height x new_width, else scale_h and scale_w times H and W, rounded down.
    NEAREST: y[i, j] = x[floor(i H / OH), floor(j W / OW)]. The fork has no backward; here it is the gradient.
    Raises LayerError if only one of a pair of fields is given, and for sizes below 1.
    """

    type = "DeephiResize"
    param_block = ("deephi_resize_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.deephi_resize_param
        if param.HasField("new_height") != param.HasField("new_width"):
            raise self.error("new_height and new_width go together, only one is given", "deephi_resize_param")
        if param.HasField("scale_h") != param.HasField("scale_w"):
            raise self.error("scale_h and scale_w go together, only one is given", "deephi_resize_param")
        self.is_nearest = param.resize_type == Resizes.NEAREST

    def sizes(self, height: int, width: int) -> tuple[int, int]:
        param = self.param.deephi_resize_param
        if param.HasField("new_height"):
            return param.new_height, param.new_width
        return self.scaled(height, param.scale_h, "scale_h"), self.scaled(width, param.scale_w, "scale_w")

    def taps(self, size: int, out: int) -> Taps:
        return ClampedTaps(size, out)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if not self.is_nearest:
            return super().reads(bottom, top, b, t)
        return tuple(Axis(taps.size, taps.out, 1 - taps.out, 0) for taps in (self.rows, self.columns))

    def _nearest(self, dtype: np.dtype[np.floating]) -> Near:
        """Return the pixel of a map that each pixel of y is, with the share 1."""
        rows, columns = (np.arange(taps.out) * taps.size // taps.out for taps in (self.rows, self.columns))
        places = (rows[:, None] * self.columns.size + columns).reshape(-1)
        return [(places, np.ones(len(places), dtype))]

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.is_nearest:
            sample(self._nearest(self.dtype), maps_of(bottom[0].data, self.how), maps_of(top[0].data, self.how))
        else:
            super().forward_cpu(bottom, top)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not self.is_nearest:
            super().backward_cpu(top, propagate_down, bottom)
        elif propagate_down[0]:
            scatter(self._nearest(self.dtype), maps_of(top[0].diff, self.how), maps_of(bottom[0].diff, self.how))


NONE = 2**15 - 1
"""The position for numbers that are all 0."""

MOST_BITS = 32


class FixedNeuron(Layer):
    """x rounded to bit_width bits. TRAIN chooses the point's position from x; TEST takes it from the blob. dx = dy.

    fixed_method: OVER_FLOW has the most bits after the point with which no number overflows. DIFF_S and DIFF_A have the least
    sum of squared errors of five positions from there on, DIFF_S_SIGMOID that of sigmoid(x), of ten. The blob stores the most
    frequent position so far, and all methods but OVER_FLOW use it. enable: false copies x.
    follow_data_layer: TRAIN rounds halves away from 0; TEST drops the bits after the point, without limits.
    bottom: x (any shape). top: y (the same shape); may be in place. blobs: position (1), which no solver updates.
    Raises LayerError for a bit_width below 1 or above 32, a position beyond 32767, and NaN or infinite x in TRAIN.
    """

    type = "FixedNeuron"
    num_bottom = 1
    num_top = 1
    in_place = True
    same_positions = True
    param_block = ("fixed_param",)
    weight_names = ("position",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        bits = self.param.fixed_param.bit_width
        if not 1 <= bits <= MOST_BITS:
            raise self.error(f"bit_width must be from 1 to {MOST_BITS}, got {bits}", "fixed_param.bit_width")
        self.learn([(1,)], [caffe_pb2.FillerParameter()])
        self.stateful = self.phase == TRAIN
        self._seen: Counter[int] = Counter()

    def running_blobs(self) -> Sequence[Blob]:
        """Return the blob that forward sets in TRAIN."""
        return self.blobs

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, param = bottom[0].data, self.param.fixed_param
        if not param.enable:
            top[0].data[...] = x
        elif self.phase == TRAIN:
            rounding = halves_away if param.follow_data_layer else halves_up
            top[0].data[...] = fixed(x, param.bit_width, self._train_position(x), rounding)
        elif param.follow_data_layer:
            top[0].data[...] = fixed(x, None, self._test_position(), np.trunc)
        else:
            top[0].data[...] = fixed(x, param.bit_width, self._test_position(), halves_up)

    def _train_position(self, x: Array) -> int:
        """Return the position for x, and store the most frequent one."""
        param = self.param.fixed_param
        if not np.isfinite(x).all():
            raise self.error("x holds NaN or an infinite number", "bottom[0]")
        now = overflow_position(x, param.bit_width)
        if param.fixed_method in (Methods.DIFF_S, Methods.DIFF_A):
            now = closest_position(x, param.bit_width, now, 5, lambda x: x)
        elif param.fixed_method == Methods.DIFF_S_SIGMOID:
            now = closest_position(x, param.bit_width, 0 if now == NONE else now, 10, sigmoid)
        self._seen[now] += 1
        most = min(self._seen, key=lambda place: (-self._seen[place], place))
        self.blobs[0].data[...] = most
        return now if param.fixed_method == Methods.OVER_FLOW else most

    def _test_position(self) -> int:
        position = float(self.blobs[0].read_data()[0])
        if not abs(position) <= NONE:
            raise self.error(f"its blob, the point's position, must be from -{NONE} to {NONE}, got {position:g}", "blobs[0]")
        return math.floor(position)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0] and top[0] is not bottom[0]:
            bottom[0].diff[...] = top[0].diff

    def training_state(self) -> State:
        return {"positions": [*self._seen], "counts": [*self._seen.values()]}

    def restore_training_state(self, state: State) -> None:
        fields = Fields(state)
        seen = zip(fields.wholes("positions", -NONE, NONE), fields.wholes("counts", 1, MOST), strict=True)
        self._seen = Counter(dict(seen))


def halves_up(x: Array) -> Array:
    """Return x rounded to whole numbers, halves up."""
    return np.where(x - np.floor(x) == 0.5, np.ceil(x), np.rint(x))


def halves_away(x: Array) -> Array:
    """Return x rounded to whole numbers, halves away from 0."""
    return np.copysign(halves_up(np.abs(x)), x)


def fixed(x: Array, bits: int | None, position: int, whole: Callable[[Array], Array]) -> Array:
    """Return x with `position` bits after the point, within this many bits in all. None: any number of bits."""
    with np.errstate(all="ignore"):
        step = x.dtype.type(np.ldexp(1.0, -position))
        if not step or np.isinf(step):  # the position for 0 alone, or steps that no x reaches
            return np.zeros_like(x)
        rounded: Array = whole(x / step) * step
        if bits is not None:
            most = x.dtype.type(2.0 ** (bits - 1))
            rounded = np.clip(rounded, -most * step, most * step - step)
        return rounded


def overflow_position(x: Array, bits: int) -> int:
    """Return the largest position with which no number of x overflows by half a step; NONE if all are 0."""
    if not x.size:
        return NONE
    least, most = -(2.0 ** (bits - 1)) - 0.5, 2.0 ** (bits - 1) - 0.5
    step = max(x.min() / x.dtype.type(least), x.max() / x.dtype.type(most))
    return NONE if step == 0 else math.floor(-np.log2(step))


def closest_position(x: Array, bits: int, first: int, count: int, function: Callable[[Array], Array]) -> int:
    """Return the first of `count` positions from `first` on with the least sum of squared errors of function(x)."""
    if first == NONE:
        return NONE
    wanted = function(x)
    errors = [
        float(((wanted - function(fixed(x, bits, first + i, halves_away))) ** 2).sum(dtype=np.float64)) for i in range(count)
    ]
    return first + int(np.argmin(errors))
