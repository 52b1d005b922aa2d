"""MarginInnerProduct: scores by the angle to each class, with a margin for the own one (A-Softmax).

    y[i, j] = |x_i| cos a_ij,  a_ij the angle between x_i and the row w_j of length 1
    y[i, label_i] = |x_i| (lambda cos a + psi(a)) / (1 + lambda),  psi(a) = (-1)^k cos(m a) - 2 k for a from k pi / m to (k + 1)
    pi / m

m is 1 to 4, by type. lambda = max(base (1 + gamma t)^-power, lambda_min); t grows by 1 with each forward in TRAIN, before that.
Forward scales the rows of the weights to length 1, in place, as the originals do. Source: Liu et al., SphereFace, 2017;
SphereFace's and happynear's margin_inner_product_layer.cpp, whose backward neglects that scaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.polynomial import Chebyshev
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer
from minicaffe.layers.loss.loss import ClassAxis, check_label_count, read_labels
from minicaffe.mode import TRAIN


class MarginInnerProduct(Layer):
    """Scores |x| cos a, with the margin for the labels' classes.

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
        if param.gamma < 0:  # 1 + gamma t becomes 0, and less
            raise self.error(f"gamma must be >= 0, got {param.gamma:g}", "margin_inner_product_param.gamma")
        self.iteration, self.times = param.iteration, 1 + param.type
        self.in_sequence = self.phase == TRAIN
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
        """|x| (N, 1), the labels (N, 1), and the cosine of the angle to the own class (N, 1), from the scores y without a
        margin."""
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
            # y = |x| f(cosine): f' through the product x w, and f - cosine f' through |x|
            value, slope = ((self.share * a + b) / (1 + self.share) for a, b in ((cosine, margin), (1, slope)))
            np.put_along_axis(dy, labels, (given * slope).astype(self.dtype), axis=1)
            along = given * np.divide(value - cosine * slope, length, out=np.zeros_like(length), where=length > 0)
        if self.param_propagate_down[0]:
            diff = dy.T @ x
            diff -= (diff * weight).sum(axis=1, keepdims=True) * weight  # the part along w changes its length alone
            self.blobs[0].diff[...] += diff
        if propagate_down[0]:
            bottom[0].diff[...] = (dy @ weight + along * x).reshape(bottom[0].shape)


def psi(cosine: Array, times: int) -> tuple[Array, Array]:
    """psi of the angle with this cosine, and its derivative in the cosine; both of cosine's shape."""
    k = np.floor(times * np.arccos(cosine) / np.pi).clip(0, times - 1)
    sign = np.where(k % 2 == 0, 1, -1)
    multiple = Chebyshev.basis(times)  # cos(m a) as a polynomial in cos a: its derivative is right at angles 0 and pi too
    return sign * multiple(cosine) - 2 * k, sign * multiple.deriv()(cosine)
