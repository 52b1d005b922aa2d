"""InnerProductOfBottoms: InnerProduct with the weights, and perhaps the bias, from bottoms: happynear's (NormFace).

    y = x weight^T + bias        dx = dy weight        dweight = dy^T x        dbias = sum of dy over the rows

Source: happynear's inner_product_layer.cpp, which adds a bias's gradient to what is in its diff.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Layer


class InnerProductOfBottoms(Layer):
    """y = x weight^T + bias, the axes from inner_product_param.axis on being one vector of K numbers.

    bottom: x (N..., K...), weight (M, K), optionally bias (M). top: y (N..., M). num_output, normalize and the fillers have no
    effect. Raises LayerError without `bias_term: false` if there is no bias, with transpose, and for sizes that are 0
    or do not match.
    """

    type = "InnerProduct"
    num_bottom = (2, 3)
    num_top = 1
    param_block = ("inner_product_param",)
    weight_names = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.inner_product_param
        if param.bias_term != (len(bottom) == 3):
            wrong = "with two bottoms it needs bias_term: false, with three bias_term: true; the third is the bias"
            raise self.error(wrong, "inner_product_param.bias_term")
        if param.transpose:
            raise self.error("transpose does not go with weights from a bottom", "inner_product_param.transpose")
        self.axis = self.axis_of(param.axis, bottom[0], "inner_product_param.axis")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, weight = bottom[0].shape, bottom[1].shape
        self.inputs = math.prod(shape[self.axis :])
        if not self.inputs:
            raise self.error(f"x of shape {shape} has no inputs", "bottom[0]")
        if not weight or math.prod(weight[1:]) != self.inputs:
            raise self.error(f"the weights must be (M, {self.inputs}), got shape {weight}", "bottom[1]")
        if len(bottom) == 3 and bottom[2].count != weight[0]:
            raise self.error(f"the bias must have {weight[0]} numbers, got {bottom[2].count}", "bottom[2]")
        top[0].reshape(*shape[: self.axis], weight[0])

    def multiply_adds(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return top[0].count * self.inputs

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, weight = (blob.data.reshape(-1, self.inputs) for blob in bottom[:2])
        y = top[0].data.reshape(len(x), len(weight))
        np.matmul(x, weight.T, out=y)
        if len(bottom) == 3:
            y += bottom[2].data.reshape(-1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x, weight = (blob.data.reshape(-1, self.inputs) for blob in bottom[:2])
        dy = top[0].diff.reshape(len(x), len(weight))
        if propagate_down[0]:
            bottom[0].diff[...] = (dy @ weight).reshape(bottom[0].shape)
        if propagate_down[1]:
            bottom[1].diff[...] = (dy.T @ x).reshape(bottom[1].shape)
        if len(bottom) == 3 and propagate_down[2]:
            bottom[2].diff[...] = dy.sum(axis=0).reshape(bottom[2].shape)
