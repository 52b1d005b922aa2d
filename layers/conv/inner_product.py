"""InnerProduct: y = x weight^T + bias, the fully connected layer. Source: Caffe's inner_product_layer.cpp.

With normalize, of happynear's caffe-windows (NormFace), each K numbers of the weights, w, count as u = w / n, n = sqrt(w w +
1e-6):
    dw = (du - u (u du)) / n
The fork writes u over w in every forward, and takes du for dw.

InnerProductOfBottoms: with more bottoms, happynear's InnerProduct takes the weights, and perhaps the bias, from them.

    y = x weight^T + bias        dx = dy weight        dweight = dy^T x        dbias = sum of dy over the rows

Source: happynear's inner_product_layer.cpp, which adds a bias's gradient to what is in its diff.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.blas import Matrix, gemm
from minicaffe.cuda.launches import column_sums, launch_add, launch_planes, launch_take
from minicaffe.formats.forks import NetFork
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.conv.matrix_products import FEW, LARGE, add_product, multiply
from minicaffe.layers.shape.items import add_rows, whole_numbers
from minicaffe.proto import caffe_pb2


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

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=top[0].count * self.inputs)

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


LEAST_SQUARE = 1e-6
"""The number that normalize adds to the sum of squares."""


class InnerProduct(Layer):
    """y = x weight^T + bias, the axes from inner_product_param.axis on being one vector of K numbers.

    bottom: x (N..., K...). top: y (N..., num_output). blobs: weight (num_output, K), or (K, num_output) with
    transpose; bias (num_output).
    normalize: x is multiplied by the weights' rows scaled to length 1. With transpose too, a row is K consecutive numbers.
    Raises LayerError when num_output is 0, axis is out of range, and K changes after setup.
    """

    type = "InnerProduct"
    num_bottom = 1
    num_top = 1
    param_block: ClassVar[tuple[str, ...]] = ("inner_product_param",)
    weight_names = ("weight", "bias")
    linear = True
    copies = (0, 0)

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        return InnerProductOfBottoms if cls is InnerProduct and len(param.bottom) > 1 else cls

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.inner_product_param
        if param.num_output < 1:
            raise self.error(f"num_output must be > 0, got {param.num_output}", "inner_product_param.num_output")
        self.axis = self.axis_of(param.axis, bottom[0], "inner_product_param.axis")
        self.transpose, self.normalize = param.transpose, param.normalize
        self.inputs = math.prod(bottom[0].shape[self.axis :])
        matrix = (self.inputs, param.num_output) if param.transpose else (param.num_output, self.inputs)
        shapes = [matrix, (param.num_output,)][: 1 + param.bias_term]
        self.learn(shapes, [param.weight_filler, param.bias_filler])
        if math.prod(matrix) > LARGE:
            self.uses_kernels = (multiply,), (multiply,)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        inputs = math.prod(shape[self.axis :])
        if inputs != self.inputs:
            raise self.error(
                f"its weights take {self.inputs} inputs, the bottom of shape {shape} now gives {inputs}; "
                "a net with this layer keeps the size it was set up for",
                "bottom[0]",
            )
        top[0].reshape(*shape[: self.axis], self.param.inner_product_param.num_output)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        rows, outputs, _ = self._sizes(top[0])
        turned = not self.transpose and 1 < rows <= outputs // FEW
        weights = 1 if propagate_down is None else 4  # the scaled weights; in backward also their gradient and its parts
        scaled = data_bytes(self.blobs[:1]) * weights * self.normalize
        multiply_adds = top[0].count * (self.blobs[0].count // outputs)
        return Costs(multiply_adds, 0, 0, scaled + turned * (data_bytes(bottom) + data_bytes(top)))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        y = self._rows(top[0].data)
        multiply(bottom[0].data.reshape(len(y), self.inputs), self.weight_matrix(self.scaled(self.blobs[0].data)).T, out=y)
        if len(self.blobs) > 1:
            y += self.blobs[1].data

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.normalize:
            super().forward_gpu(bottom, top)
            return
        rows, outputs, inputs = self._sizes(top[0])
        y = top[0].device_data("write")
        weight = self._matrix(self.blobs[0].device_data("read"), transposed=not self.transpose)
        gemm(self.dtype, (rows, outputs, inputs), Matrix(bottom[0].device_data("read"), inputs), weight, Matrix(y, outputs))
        if len(self.blobs) > 1:
            bias = self.blobs[1].device_data("read")
            # Each number is a plane, with num_output channels.
            launch_planes("scale.scale", self.dtype, rows * outputs, 1, outputs, y, 0, bias, y, 0)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = self._rows(top[0].diff)
        if self.param_propagate_down[0]:
            x = bottom[0].data.reshape(len(dy), self.inputs)
            factors = (x.T, dy) if self.transpose else (dy.T, x)
            if self.normalize:
                self._add_scaled_gradient(*factors)
            else:
                add_product(*factors, self.blobs[0].diff)
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            self.blobs[1].diff[...] += dy.sum(axis=0)
        if propagate_down[0]:
            multiply(dy, self.weight_matrix(self.scaled(self.blobs[0].data)), out=bottom[0].diff.reshape(len(dy), self.inputs))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.normalize:
            super().backward_gpu(top, propagate_down, bottom)
            return
        rows, outputs, inputs = self._sizes(top[0])
        dy = top[0].device_diff("read")
        if self.param_propagate_down[0]:
            x, weight = bottom[0].device_data("read"), self._matrix(self.blobs[0].device_diff("update"))
            if self.transpose:
                gemm(self.dtype, (inputs, outputs, rows), Matrix(x, inputs, True), Matrix(dy, outputs), weight, beta=1)
            else:
                gemm(self.dtype, (outputs, inputs, rows), Matrix(dy, outputs, True), Matrix(x, inputs), weight, beta=1)
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            column_sums(self.dtype, rows, outputs, dy, self.blobs[1].device_diff("update"))
        if propagate_down[0]:
            dx, weight = bottom[0].device_diff("write"), self._matrix(self.blobs[0].device_data("read"), self.transpose)
            gemm(self.dtype, (rows, inputs, outputs), Matrix(dy, outputs), weight, Matrix(dx, inputs))

    def scaled(self, weight: Array) -> Array:
        """Return the weights that multiply x. With normalize they are a copy whose rows have length 1."""
        if not self.normalize:
            return weight
        rows = weight.reshape(self.param.inner_product_param.num_output, self.inputs)
        return np.asarray(rows / row_lengths(rows)).reshape(weight.shape)

    def _add_scaled_gradient(self, a: Array, b: Array) -> None:
        """Add the weights' gradient to their diff, from the gradient a @ b of the scaled weights."""
        du = np.zeros(self.blobs[0].shape, self.dtype)
        add_product(a, b, du)
        add_through_lengths(self.blobs[0], du.reshape(self.param.inner_product_param.num_output, self.inputs))

    def _sizes(self, top: Blob) -> tuple[int, int, int]:
        """Return (N, num_output, K)."""
        outputs = top.shape[-1]
        return top.count // outputs, outputs, self.inputs

    def _matrix(self, address: int, transposed: bool = False) -> Matrix:
        """Return a matrix on the device: the weights or their diff as stored, or transposed."""
        return Matrix(address, self.param.inner_product_param.num_output if self.transpose else self.inputs, transposed)

    def weight_matrix(self, matrix: Array) -> Array:
        """Return the weights or their diff as (num_output, K), a view."""
        return matrix.T if self.transpose else matrix

    def _rows(self, y: Array) -> Array:
        """Return y (N..., num_output) as a matrix (N, num_output), a view."""
        return y.reshape(math.prod(y.shape[: self.axis]), y.shape[-1])


def row_lengths(rows: Array) -> Array:
    """Return sqrt(w w + 1e-6) for each row w of rows (M, K): (M, 1)."""
    lengths: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows) + rows.dtype.type(LEAST_SQUARE))[:, None]
    return lengths


def add_through_lengths(weight: Blob, du: Array) -> None:
    """Add to weight's diff, given the gradient du (M, K) of the rows scaled to length 1. du is overwritten."""
    rows = weight.data.reshape(du.shape)
    n = row_lengths(rows)
    u = rows / n
    du -= u * np.einsum("ij,ij->i", u, du)[:, None]
    weight.diff.reshape(du.shape)[...] += du / n


class Embed(Layer):
    """y[n...] = weight[x[n...]] + bias.

    InnerProduct of one-hot vectors, without making them.

    Source: Caffe's embed_layer.cpp.

    bottom: x, any shape, whole numbers in [0, input_dim), as floats. top: y (*x's shape, num_output).
    blobs: weight (input_dim, num_output), bias (num_output).
    Raises LayerError when num_output or input_dim is 0, or a number of x is no row of the table; in a net of bottom-up-
    attention's, whose Embed replaces a last axis of length 1, for such an x.
    """

    type = "Embed"
    num_bottom = 1
    num_top = 1
    index_bottoms = (0,)
    param_block = ("embed_param",)
    weight_names = ("weight", "bias")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.embed_param
        for field, number in (("num_output", param.num_output), ("input_dim", param.input_dim)):
            if number < 1:
                raise self.error(f"{field} must be > 0, got {number}", f"embed_param.{field}")
        shapes = [(param.input_dim, param.num_output), (param.num_output,)][: 1 + param.bias_term]
        self.learn(shapes, [param.weight_filler, param.bias_filler])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.fork.name == "butd" and bottom[0].shape[-1:] == (1,):
            wrong = "bottom-up-attention's, which puts num_output in the place of x's last axis of length 1, is not built in"
            raise self.error(f"{wrong}: drop that axis with a Reshape before; x has shape {bottom[0].shape}", "bottom[0]")
        top[0].reshape(*bottom[0].shape, self.param.embed_param.num_output)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(multiply_adds=0, working=0 if propagate_down is None else data_bytes(top))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        weight, y = self.blobs[0].data, top[0].data
        # _index has checked the indices; mode "raise" would buffer out
        np.take(weight, self._index(bottom), axis=0, out=y, mode="clip")
        if len(self.blobs) > 1:
            y += self.blobs[1].data

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        table = self.blobs[0].device_data("read")
        bias = self.blobs[1].device_data("read") if len(self.blobs) > 1 else 0
        launch_take(self, bottom[0], "bottom[0]", table, self.blobs[0].shape[0], top[0], bias=bias)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = top[0].diff.reshape(bottom[0].count, top[0].shape[-1])
        if self.param_propagate_down[0]:
            add_rows(dy, self._index(bottom).reshape(-1), self.blobs[0].diff)
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            self.blobs[1].diff[...] += dy.sum(axis=0)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.param_propagate_down[0]:
            launch_add(self, bottom[0], top[0], self.blobs[0].shape[0], self.blobs[0].device_diff("update"))
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            dy, dbias, width = top[0].device_diff("read"), self.blobs[1].device_diff("update"), top[0].shape[-1]
            column_sums(self.dtype, bottom[0].count, width, dy, dbias)

    def _index(self, bottom: Sequence[Blob]) -> Array:
        return whole_numbers(self, bottom[0].data, self.blobs[0].shape[0], "bottom[0]")
