"""InnerDistance: how far each vector is from each class's centre.

    L2 (squared)  y[m, n] = sum_k (x[m, k] - w[n, k])^2      dx = 2 sum_n dy (x - w)       dw = 2 sum_m dy (w - x)
    L1            y[m, n] = sum_k |x[m, k] - w[n, k]|        dx = sum_n dy sign(x - w)     dw = sum_m dy sign(w - x)

Source: happynear's inner_distance_layer.cpp (Wang et al., NormFace, arXiv:1704.06369). With normalize the rows of the layer's
weights count as scaled to length 1, as InnerProduct's do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer
from minicaffe.layers.conv.inner_product import add_through_lengths, row_lengths


class InnerDistance(Layer):
    """The distance of each vector to num_output centres, the axes from inner_distance_param.axis on being one vector.

    bottom: x (M..., K...); optionally the centres w (N, K), which then get a gradient. top: y (M..., N).
    blob, without a second bottom: weight (num_output, K), or (K, num_output) with transpose, of which K numbers as they lie are
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
        """The centres (N, K): a view, or with normalize a copy."""
        rows: Array = (bottom[1] if len(bottom) > 1 else self.blobs[0]).read_data().reshape(-1, self.features)
        return np.asarray(rows / row_lengths(rows)) if self.normalize else rows

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, centres = bottom[0].data.reshape(-1, self.features), self._centres(bottom)
        y = top[0].data.reshape(len(x), len(centres))
        squared = self.param.inner_distance_param.distance_type == "L2"
        for n, centre in enumerate(centres):  # differences, for x^2 - 2 x w + w^2 would cancel
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
