"""Class scores with a margin for the true class, and distances to class centres."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.polynomial import Chebyshev
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer
from minicaffe.layers.conv.inner_product import add_through_lengths, row_lengths
from minicaffe.layers.loss.loss import ClassAxis, check_label_count, read_labels
from minicaffe.mode import TRAIN


class LabelScores(Layer):
    """A layer that changes the scores of the labels.

    bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: y (x's shape), may be in
    place; optionally the number that the layer changes scores by, (1,). Raises LayerError for another number of labels.
    """

    num_bottom = 2
    num_top = (1, 2)
    in_place = True
    index_bottoms = (1,)
    weight_names = ()

    split: ClassAxis
    """Items and classes."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.split = ClassAxis(math.prod(shape[:1]), math.prod(shape[1:]), 1)
        check_label_count(self, self.split, bottom)
        top[0].reshape(shape)
        if len(top) > 1:
            top[1].reshape(1)


class LabelSpecificAdd(LabelScores):
    """A bias added to the label's score where it is above -bias, in TRAIN; dx = dy.

        y[i, j] = x[i, j] + bias for j = label_i and x[i, j] > -bias; else x[i, j]

    With bias_base the bias changes with the iteration t: base + (1 + gamma t)^power - 1, at least bias_min, at most bias_max.
    Source: happynear's label_specific_add.cpp (additive margins, Wang et al., 2018); its transform_test has no effect in TEST.

    bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: y (x's shape), may be in
    place; optionally the bias (1,). label_specific_add_param: bias, or bias_base, bias_gamma, bias_power, bias_min, bias_max
    and iteration (the first t). In TEST y = x, whatever transform_test says, as in the original.
    Raises LayerError for another number of labels, and for a label that is not whole or not a class.
    """

    type = "LabelSpecificAdd"
    param_block = ("label_specific_add_param",)
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.iteration = self.param.label_specific_add_param.iteration
        self.stateful = self.phase == TRAIN and self.param.label_specific_add_param.HasField("bias_base")

    def bias(self) -> float:
        """Return the bias of the next forward. Each call counts an iteration."""
        param = self.param.label_specific_add_param
        if not param.HasField("bias_base"):
            return param.bias
        # Where C's pow overflows or is undefined, NumPy gives the same infinity or NaN.
        power = np.float64(1 + param.bias_gamma * self.iteration) ** param.bias_power
        bias = float(param.bias_base + power - 1)
        self.iteration += 1
        return min(max(bias, param.bias_min), param.bias_max)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is not bottom[0]:
            top[0].data[...] = bottom[0].data
        bias = self.bias() if self.phase == TRAIN else 0.0
        if len(top) > 1:
            top[1].data[...] = bias
        if self.phase == TRAIN:
            y = top[0].data.reshape(self.split[:2])
            labels, _ = read_labels(self, bottom[1].data, self.split, None)
            own = np.take_along_axis(y, labels, axis=1)
            np.put_along_axis(y, labels, own + np.where(own > -bias, self.dtype.type(bias), 0), axis=1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0] and top[0] is not bottom[0]:
            bottom[0].diff[...] = top[0].diff


class LabelSpecificRescale(LabelScores):
    """The labels' scores times one number, the others times another, in TRAIN, and in TEST with rescale_test.

        y[i, label_i] = w x + (1 - w with bias_fix), with for_ip only where x > 0        y[i, j] = negative_weight x

    Otherwise y = x. w is positive_weight; with positive_weight_base, in TRAIN, base (1 + gamma t)^-power, at least
    positive_weight_min, at most positive_weight_max; t grows by 1 with each forward, before that. Source: happynear's
    label_specific_rescale.cpp.

    bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: y (x's shape), may be in
    place; optionally w (1,). positive_lower_bound and negative_upper_bound have no effect, as in the original.
    Raises LayerError for power_on_positive, a gamma below 0, another number of labels, and a label that is not whole
    or not a class.
    """

    type = "LabelSpecificRescale"
    param_block = ("label_specific_rescale_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.label_specific_rescale_param
        if param.power_on_positive:
            wrong = (
                "power_on_positive is not built in: the fork's code for the CPU and that for the GPU compute different things"
            )
            raise self.error(wrong, "label_specific_rescale_param.power_on_positive")
        if param.HasField("positive_weight_base") and param.gamma < 0:
            # With gamma < 0, 1 + gamma t reaches 0 and becomes negative.
            raise self.error(f"gamma must be >= 0, got {param.gamma:g}", "label_specific_rescale_param.gamma")
        self.weight, self.iteration = param.positive_weight, param.iteration
        self.stateful = self.phase == TRAIN and param.HasField("positive_weight_base")

    def _next_weight(self) -> float:
        """Return w of the next forward. Each call counts an iteration."""
        param = self.param.label_specific_rescale_param
        self.iteration += 1
        weight = float(param.positive_weight_base * np.float64(1 + param.gamma * self.iteration) ** -param.power)
        if param.HasField("positive_weight_min"):
            weight = max(weight, param.positive_weight_min)
        return min(weight, param.positive_weight_max) if param.HasField("positive_weight_max") else weight

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, x, y = self.param.label_specific_rescale_param, bottom[0].data, top[0].data
        if self.stateful:
            self.weight = self._next_weight()
        if len(top) > 1:
            top[1].data[...] = self.weight
        self.scale = None
        if self.phase != TRAIN and not param.rescale_test:
            y[...] = x
            return
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        self.scale = np.full(self.split[:2], param.negative_weight, self.dtype)
        own = np.take_along_axis(x.reshape(self.split[:2]), labels, axis=1)
        scaled = own > 0 if param.for_ip else np.ones(own.shape, bool)
        np.put_along_axis(self.scale, labels, np.where(scaled, self.weight, 1).astype(self.dtype), axis=1)
        np.multiply(x, self.scale.reshape(x.shape), out=y)
        if param.bias_fix:
            rows = y.reshape(self.split[:2])
            rows[np.arange(len(rows)), labels[:, 0]] += np.where(scaled, 1 - self.weight, 0)[:, 0].astype(self.dtype)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            dy = top[0].diff
            bottom[0].diff[...] = dy if self.scale is None else dy * self.scale.reshape(dy.shape)


class MarginInnerProduct(Layer):
    """Scores |x| cos a by the angle to each class, with a margin for the label's class (A-Softmax).

        y[i, j] = |x_i| cos a_ij,  a_ij the angle between x_i and the row w_j of length 1
        y[i, label_i] = |x_i| (lambda cos a + psi(a)) / (1 + lambda)
        psi(a) = (-1)^k cos(m a) - 2 k for a from k pi / m to (k + 1) pi / m

    m is 1 to 4, by type. lambda = max(base (1 + gamma t)^-power, lambda_min); t grows by 1 with each forward in TRAIN, before
    that. Forward scales the rows of the weights to length 1, in place, as the originals do. Source: Liu et al., SphereFace,
    2017; SphereFace's and happynear's margin_inner_product_layer.cpp, whose backward neglects that scaling.

    bottom: x (N, ...) features, one vector from margin_inner_product_param.axis on; labels (N,). top: y (N, num_output); lambda
    (1,).
    blobs: weight (num_output, K). The gradients are those of y, also through the weights' length.
    Raises LayerError for num_output 0, a gamma below 0, no features, other shapes, and a label that is not
    whole or not a class.
    """

    type = "MarginInnerProduct"
    num_bottom = 2
    num_top = (1, 2)
    index_bottoms = (1,)
    param_block = ("margin_inner_product_param",)
    weight_names = ("weight",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.margin_inner_product_param
        if not param.num_output:
            raise self.error("num_output must be > 0, got 0", "margin_inner_product_param.num_output")
        self.axis = self.axis_of(param.axis, bottom[0], "margin_inner_product_param.axis")
        self.features = math.prod(bottom[0].shape[self.axis :])
        if not self.features:
            raise self.error(f"the bottom of shape {bottom[0].shape} has no features", "bottom[0]")
        if param.gamma < 0:  # 1 + gamma t would reach 0 and become negative
            raise self.error(f"gamma must be >= 0, got {param.gamma:g}", "margin_inner_product_param.gamma")
        self.iteration, self.times = param.iteration, 1 + param.type
        self.stateful = self.phase == TRAIN
        self.learn([(param.num_output, self.features)], [param.weight_filler])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, classes = bottom[0].shape, self.param.margin_inner_product_param.num_output
        if math.prod(shape[self.axis :]) != self.features:
            raise self.error(f"was set up for {self.features} features, the bottom's shape is now {shape}", "bottom[0]")
        self.split = ClassAxis(math.prod(shape[: self.axis]), classes, 1)
        check_label_count(self, self.split, bottom)
        top[0].reshape(*shape[: self.axis], classes)
        if len(top) > 1:
            top[1].reshape(1)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=self.split.outer * self.blobs[0].count)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, weight = self.param.margin_inner_product_param, self.blobs[0].data
        self.iteration += self.phase == TRAIN
        self.share = max(param.base * np.float64(1 + param.gamma * self.iteration) ** -param.power, param.lambda_min)
        if len(top) > 1:
            top[1].data[...] = self.share
        self.lengths = np.linalg.norm(weight, axis=1, keepdims=True)
        np.divide(weight, self.lengths, out=weight, where=self.lengths > 0)
        x, y = bottom[0].data.reshape(-1, self.features), top[0].data.reshape(self.split[:2])
        np.matmul(x, weight.T, out=y)
        if self.times > 1:
            length, labels, cosine = self._own(bottom, y)
            margin, _ = psi(cosine, self.times)
            own = length * (self.share * cosine + margin) / (1 + self.share)
            np.put_along_axis(y, labels, own.astype(self.dtype), axis=1)

    def _own(self, bottom: Sequence[Blob], y: Array) -> tuple[Array, NDArray[np.intp], Array]:
        """Return |x|, the labels, and the cosine of the angle to the own class, (N, 1) each.

        y: the scores without a margin.
        """
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        length = np.linalg.norm(bottom[0].data.reshape(-1, self.features), axis=1, keepdims=True)
        own = np.take_along_axis(y, labels, axis=1)
        return length, labels, np.divide(own, length, out=np.zeros_like(own), where=length > 0).clip(-1, 1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        weight, x = self.blobs[0].data, bottom[0].data.reshape(-1, self.features)
        dy = top[0].diff.reshape(self.split[:2]).copy()
        along = np.zeros((len(x), 1), self.dtype)
        if self.times > 1:
            length, labels, cosine = self._own(bottom, x @ weight.T)
            margin, slope = psi(cosine, self.times)
            given = np.take_along_axis(dy, labels, axis=1)
            # y = |x| f(cosine). The slope is f' through the product x w, and f - cosine f' through |x|.
            value, slope = ((self.share * a + b) / (1 + self.share) for a, b in ((cosine, margin), (1, slope)))
            np.put_along_axis(dy, labels, (given * slope).astype(self.dtype), axis=1)
            along = given * np.divide(value - cosine * slope, length, out=np.zeros_like(length), where=length > 0)
        if self.param_propagate_down[0]:
            diff = dy.T @ x
            diff -= (diff * weight).sum(axis=1, keepdims=True) * weight  # the part along w only changes w's length
            self.blobs[0].diff[...] += diff
        if propagate_down[0]:
            bottom[0].diff[...] = (dy @ weight + along * x).reshape(bottom[0].shape)


def psi(cosine: Array, times: int) -> tuple[Array, Array]:
    """Return psi of the angle with this cosine, and psi's derivative in the cosine; both of cosine's shape."""
    k = np.floor(times * np.arccos(cosine) / np.pi).clip(0, times - 1)
    sign = np.where(k % 2 == 0, 1, -1)
    multiple = Chebyshev.basis(times)  # cos(m a) as a polynomial in cos a, whose derivative is also right at angles 0 and pi
    return sign * multiple(cosine) - 2 * k, sign * multiple.deriv()(cosine)


class InnerDistance(Layer):
    """The distance of each vector to num_output centres, the axes from inner_distance_param.axis on being one vector.

        L2 (squared)  y[m, n] = sum_k (x[m, k] - w[n, k])^2      dx = 2 sum_n dy (x - w)       dw = 2 sum_m dy (w - x)
        L1            y[m, n] = sum_k |x[m, k] - w[n, k]|        dx = sum_n dy sign(x - w)     dw = sum_m dy sign(w - x)

    Source: happynear's inner_distance_layer.cpp (Wang et al., NormFace, arXiv:1704.06369). With normalize the rows of the
    layer's weights count as scaled to length 1, as InnerProduct's do.

    bottom: x (M..., K...); optionally the centres w (N, K), which then get a gradient. top: y (M..., N).
    blob, without a second bottom: weight (num_output, K), or (K, num_output) with transpose, of which K consecutive numbers are
    a centre. inner_distance_param: distance_type "L2" (the default) or "L1"; normalize; bias_term and bias_filler have no
    effect.
    Raises LayerError for num_output 0, another distance_type, update_center_only (another gradient, not built in), and sizes
    that are 0 or do not match.
    """

    type = "InnerDistance"
    num_bottom = (1, 2)
    num_top = 1
    param_block = ("inner_distance_param",)
    weight_names: tuple[str, ...] = ("weight",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.inner_distance_param
        if param.distance_type not in ("L2", "L1"):
            raise self.error(
                f'distance_type must be "L2" or "L1", got "{param.distance_type}"', "inner_distance_param.distance_type"
            )
        if param.update_center_only:
            wrong = "update_center_only changes the gradient of the centres alone, which is not built in"
            raise self.error(wrong, "inner_distance_param.update_center_only")
        self.axis = self.axis_of(param.axis, bottom[0], "inner_distance_param.axis")
        self.features = math.prod(bottom[0].shape[self.axis :])
        if not self.features:
            raise self.error(f"x of shape {bottom[0].shape} has no features", "bottom[0]")
        self.normalize = param.normalize and len(bottom) == 1
        if len(bottom) > 1:
            self.weight_names = ()
            return
        if not param.num_output:
            raise self.error("num_output must be > 0, got 0", "inner_distance_param.num_output")
        shape = (self.features, param.num_output) if param.transpose else (param.num_output, self.features)
        self.learn([shape], [param.weight_filler])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if math.prod(shape[self.axis :]) != self.features:
            raise self.error(f"was set up for {self.features} features, the bottom's shape is now {shape}", "bottom[0]")
        if len(bottom) > 1 and (not bottom[1].shape or math.prod(bottom[1].shape[1:]) != self.features):
            raise self.error(f"the centres must be (N, {self.features}), got shape {bottom[1].shape}", "bottom[1]")
        centres = bottom[1].shape[0] if len(bottom) > 1 else self.param.inner_distance_param.num_output
        top[0].reshape(*shape[: self.axis], centres)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=top[0].count * self.features)

    def _centres(self, bottom: Sequence[Blob]) -> Array:
        """Return the centres (N, K): a view, or with normalize a copy."""
        rows: Array = (bottom[1] if len(bottom) > 1 else self.blobs[0]).read_data().reshape(-1, self.features)
        return np.asarray(rows / row_lengths(rows)) if self.normalize else rows

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, centres = bottom[0].data.reshape(-1, self.features), self._centres(bottom)
        y = top[0].data.reshape(len(x), len(centres))
        squared = self.param.inner_distance_param.distance_type == "L2"
        for n, centre in enumerate(centres):  # differences, because x^2 - 2 x w + w^2 would cancel
            d = x - centre
            y[:, n] = np.einsum("mk,mk->m", d, d) if squared else np.abs(d).sum(axis=1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x, centres = bottom[0].data.reshape(-1, self.features), self._centres(bottom)
        dy = top[0].diff.reshape(len(x), len(centres))
        if self.param.inner_distance_param.distance_type == "L2":
            dx, dw = 2 * (dy.sum(axis=1)[:, None] * x - dy @ centres), 2 * (dy.sum(axis=0)[:, None] * centres - dy.T @ x)
        else:
            dx, dw = np.zeros_like(x), np.empty_like(centres)
            for n, centre in enumerate(centres):
                sign = np.sign(x - centre)
                dx += dy[:, n, None] * sign
                dw[n] = -(dy[:, n] @ sign)
        if propagate_down[0]:
            bottom[0].diff[...] = dx.reshape(bottom[0].shape)
        if len(bottom) > 1:
            if propagate_down[1]:
                bottom[1].diff[...] = dw.reshape(bottom[1].shape)
        elif self.param_propagate_down[0]:
            if self.normalize:
                add_through_lengths(self.blobs[0], dw)
            else:
                self.blobs[0].diff[...] += dw.reshape(self.blobs[0].shape)
