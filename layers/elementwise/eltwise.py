"""Eltwise: the product, weighted sum or maximum of bottoms, element by element. Source: Caffe's eltwise_layer.hpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.convolution import DeviceEpilogue
from minicaffe.layer import Costs
from minicaffe.proto import caffe_pb2
from minicaffe.threads import Index, each_block

from .epilogue import NOTHING, Epilogue
from .fusion import Channelwise, Fusing

PROD, SUM, MAX = caffe_pb2.EltwiseParameter.PROD, caffe_pb2.EltwiseParameter.SUM, caffe_pb2.EltwiseParameter.MAX


class Eltwise(Fusing):
    """PROD: y = x_0 x_1 ...; SUM (default): y = coeff_0 x_0 + coeff_1 x_1 + ..., coefficients 1; MAX: y = max(x_0, x_1, ...).

    MAX gives the gradient to one bottom: of equal x_0 and x_1 the second, a later bottom only where strictly greater.
    PROD's gradient is the product of the other bottoms (stable_prod_grad, the default), or y / x_i, which fails at x_i = 0.
    bottom[i]: x_i (any one shape), two or more; for SUM one is enough, as in FlowNet 2. top: y (the same shape).
    Raises LayerError when shapes differ, for one bottom without SUM, when the number of coeff is neither 0 nor that of the
    bottoms, or PROD has coeff.
    """

    type = "Eltwise"
    num_bottom = (1, None)
    num_top = 1
    param_block = ("eltwise_param",)
    weight_names = ()
    elementwise = True
    fuses = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.eltwise_param
        if len(param.coeff) not in (0, len(bottom)):
            raise self.error(f"{len(param.coeff)} coeff given for {len(bottom)} bottoms", "eltwise_param.coeff")
        if param.operation != SUM and param.coeff:
            name = caffe_pb2.EltwiseParameter.EltwiseOp.Name(param.operation)
            raise self.error(f"coeff is for SUM, not for {name}", "eltwise_param.coeff")
        if param.operation != SUM and len(bottom) < 2:
            raise self.error("takes at least 2 bottoms, got 1; a SUM takes one", "bottom")
        self.operation, self.coeff = param.operation, tuple(param.coeff) or (1.0,) * len(bottom)
        self._winner = Blob((), np.int32)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i, blob in enumerate(bottom):
            if blob.shape != bottom[0].shape:
                raise self.error(f"bottom {i} has shape {blob.shape}, bottom 0 has {bottom[0].shape}", f"bottom[{i}]")
        top[0].reshape(bottom[0].shape)
        if self.operation == MAX:
            self._winner.reshape(bottom[0].shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(saved=4 * top[0].count if self.operation == MAX else 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ready(bottom, top, NOTHING)()

    def may_apply(self, other: Channelwise) -> bool:
        return other.is_rectifier

    def ready(self, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: Epilogue) -> Callable[[], None]:
        return partial(self._forward, bottom, top, epilogue)

    def _forward(self, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: Epilogue) -> None:
        xs, y = [blob.data.reshape(-1) for blob in bottom], top[0].data.reshape(-1)
        winner, operation = self._winner.data.reshape(-1), self.operation

        def step(index: Index) -> None:
            parts, out = [x[index] for x in xs], y[index]
            if operation == PROD:
                np.multiply(parts[0], parts[1], out=out)
                for x in parts[2:]:
                    out *= x
            elif operation == SUM:
                weighted_sum(parts, self.coeff, out=out)
            else:
                winner[index] = first_maximum(parts, out=out)
            epilogue(out)

        each_block(y.shape, step)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.forward_gpu_with_epilogue(bottom, top, None)

    def forward_gpu_with_epilogue(self, bottom: Sequence[Blob], top: Sequence[Blob], after: DeviceEpilogue | None) -> None:
        operation, count, last = self.operation, top[0].count, len(bottom) - 1
        slopes = [1.0] * last + [1.0 if after is None else after.negative_slope]  # the last launch applies the ReLU
        first, *rest = [blob.device_data("read") for blob in bottom]
        y = top[0].device_data("write")
        winner = self._winner.device_data("write") if operation == MAX else 0
        first_coeff = self.coeff[0]
        if not rest:  # exact: two halves add up to the whole without rounding
            half = first_coeff / 2
            self.launch("eltwise.weighted_sum", count, count, first, half, first, half, slopes[0], y)
        for i, x in enumerate(rest, 1):
            if operation == PROD:
                self.launch("eltwise.product", count, count, first, x, slopes[i], y)
            elif operation == SUM:
                self.launch("eltwise.weighted_sum", count, count, first, first_coeff, x, self.coeff[i], slopes[i], y)
            elif i == 1:
                self.launch("eltwise.maximum", count, count, first, x, slopes[i], y, winner)
            else:
                self.launch("eltwise.maximum_with", count, count, x, i, slopes[i], y, winner)
            first, first_coeff = y, 1.0

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        y, dy, xs = top[0].data.reshape(-1), top[0].diff.reshape(-1), [blob.data.reshape(-1) for blob in bottom]
        diffs = [(i, blob.diff.reshape(-1)) for i, blob in enumerate(bottom) if propagate_down[i]]

        def step(at: Index) -> None:
            for i, dx in diffs:
                self._gradient(i, y[at], dy[at], [x[at] for x in xs], dx[at], at)

        each_block(dy.shape, step)

    def _gradient(self, i: int, y: Array, dy: Array, xs: Sequence[Array], dx: Array, at: Index) -> None:
        """Compute dx, bottom i's gradient, for the block at `at`."""
        param = self.param.eltwise_param
        if self.operation == SUM:
            np.multiply(dy, self.coeff[i], out=dx)
        elif self.operation == MAX:
            np.multiply(dy, self._winner.read_data().reshape(-1)[at] == i, out=dx)
        elif param.stable_prod_grad:
            dx[...] = dy
            for other in (*xs[:i], *xs[i + 1 :]):
                dx *= other
        else:
            np.divide(y, xs[i], out=dx)  # y without x_i: cheap, but undefined at x_i = 0
            dx *= dy

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        param, count, dy = self.param.eltwise_param, top[0].count, top[0].device_diff("read")
        for i, blob in enumerate(bottom):
            if not propagate_down[i]:
                continue
            dx = blob.device_diff("write")
            if self.operation == SUM:
                self.launch("eltwise.scaled", count, count, dy, self.coeff[i], dx)
            elif self.operation == MAX:
                self.launch("eltwise.won", count, count, dy, self._winner.device_data("read"), i, dx)
            elif param.stable_prod_grad:
                product = dy
                for other in [*bottom[:i], *bottom[i + 1 :]]:
                    self.launch("eltwise.product", count, count, product, other.device_data("read"), 1.0, dx)
                    product = dx
            else:
                y, x = top[0].device_data("read"), blob.device_data("read")
                self.launch("eltwise.quotient", count, count, y, x, dy, dx)


def weighted_sum(xs: Sequence[Array], coeff: Sequence[float], out: Array) -> Array:
    """Return the weighted sum of arrays of one shape, in out, which is none of xs."""
    if len(xs) == 1:
        np.multiply(xs[0], coeff[0], out=out)
    elif coeff[0] == coeff[1] == 1:
        np.add(xs[0], xs[1], out=out)
    else:
        np.multiply(xs[0], coeff[0], out=out)
        out += xs[1] * coeff[1]
    for x, c in zip(xs[2:], coeff[2:], strict=True):
        out += x if c == 1 else x * c
    return out


def first_maximum(xs: Sequence[Array], out: Array) -> NDArray[np.int32]:
    """Return the index of the array that each maximum comes from. The maxima go to out, which is none of xs."""
    # Caffe's comparison: ties and NaN go to x_1, unlike with np.maximum.
    winner: NDArray[np.int32] = np.where(xs[0] > xs[1], np.int32(0), np.int32(1))
    out[...] = np.where(winner == 0, xs[0], xs[1])
    for i, x in enumerate(xs[2:], 2):
        greater = x > out  # strictly greater: in Caffe, later bottoms lose ties
        np.copyto(out, x, where=greater)
        winner[greater] = i
    return winner
