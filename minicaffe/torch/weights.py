"""The layer types with learnable blobs as torch Modules. names: the names of the blobs, in order.

A Module is built from the layer, its bottoms and its tops; forward takes and returns tensors in their order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from minicaffe.layer import Layer
from minicaffe.layers.conv.inner_product import LEAST_SQUARE
from minicaffe.layers.conv.inner_product import InnerProduct as OurInnerProduct
from minicaffe.layers.elementwise.channels import channels_of
from minicaffe.layers.neuron.dropout import Dropout as OurDropout
from minicaffe.layers.norm import bn as our_bn
from minicaffe.layers.norm.batch_norm import BatchNorm as OurBatchNorm


def copied(layer: Layer, index: int) -> Tensor:
    """Return a copy of a layer's blob."""
    return torch.tensor(layer.blobs[index].read_data())


def learnt(layer: Layer, index: int) -> nn.Parameter:
    """Return a copy of a layer's blob as a Parameter, frozen if its lr_mult is 0."""
    specs = layer.param.param
    frozen = index < len(specs) and specs[index].lr_mult == 0  # as Caffe freezes a weight
    return nn.Parameter(copied(layer, index), requires_grad=not frozen)


class Weighted(nn.Module):
    """A Module with weight and bias from a layer's blobs; names lists those that exist."""

    names: tuple[str, ...] = ("weight", "bias")
    weight: Any  # a Parameter, or None
    bias: Any

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.names = self.names[: len(layer.blobs)]
        for name in ("weight", "bias"):
            self.register_parameter(name, None)  # so that self.bias is None if there is none
        for i, name in enumerate(self.names):
            setattr(self, name, learnt(layer, i))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {tuple(getattr(self, name).shape)}" for name in self.names)


class InnerProduct(Weighted):
    """InnerProduct; the weight has Caffe's layout, transposed or not, and with normalize is stored unscaled."""

    def __init__(self, layer: OurInnerProduct) -> None:
        super().__init__(layer)
        self.axis, self.inputs, self.transpose = layer.axis, layer.inputs, layer.transpose
        self.normalize = layer.normalize

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.normalize:
            rows = weight.reshape(-1, self.inputs)
            weight = (rows / (rows.square().sum(1, keepdim=True) + LEAST_SQUARE).sqrt()).reshape(weight.shape)
        weight = weight.T if self.transpose else weight
        return functional.linear(x.reshape(*x.shape[: self.axis], self.inputs), weight, self.bias)


class Dropout(nn.Module):
    """Dropout, with torch's own random numbers while the Module trains, or always with sample_weights_test."""

    def __init__(self, layer: OurDropout) -> None:
        super().__init__()
        self.ratio, self.scale_train = layer.dropout_ratio, layer.scale_train
        self.always = layer.param.dropout_param.sample_weights_test

    def forward(self, x: Tensor) -> Tensor:
        draws = self.training or self.always
        if self.scale_train:
            return functional.dropout(x, self.ratio, draws)
        # torch scales in training; this form of Caffe's scales in TEST.
        return functional.dropout(x, self.ratio) * (1 - self.ratio) if draws else x * (1 - self.ratio)


class PReLU(Weighted):
    """PReLU with Caffe's slopes, per channel or shared."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.prelu(x, self.weight.reshape(-1))  # a shared slope is a scalar here, but (1,) in torch


class Parameter(Weighted):
    """Parameter, whose output is the weight itself."""

    def forward(self) -> Tensor:
        return self.weight


class BatchNorm(nn.Module):
    """BatchNorm with Caffe's running sums as buffers: mean_sum, variance_sum, factor.

    The batch's statistics are used if use_global_stats is false, or is not given and the Module trains.
    """

    names = ("mean_sum", "variance_sum", "factor")

    def __init__(self, layer: OurBatchNorm) -> None:
        super().__init__()
        param = layer.param.batch_norm_param
        self.use_global = param.use_global_stats if param.HasField("use_global_stats") else None
        self.eps, self.fraction = layer.eps, layer.fraction
        for i, name in enumerate(self.names):
            self.register_buffer(name, copied(layer, i))

    def forward(self, x: Tensor) -> Tensor:
        channels = channels_of(tuple(x.shape))
        table = x.reshape(-1, channels, *x.shape[2:])
        if self.training if self.use_global is None else not self.use_global:
            self._keep(table.detach(), channels)
            # _keep updates Caffe's sums, which differ from torch's running means.
            return functional.batch_norm(table, None, None, training=True, eps=self.eps).reshape(x.shape)
        # as in Caffe, mean and variance are 0 before training
        inverse = torch.where(self.factor == 0, self.factor, 1 / self.factor)
        mean, variance = self.mean_sum * inverse, self.variance_sum * inverse
        return functional.batch_norm(table, mean, variance, eps=self.eps).reshape(x.shape)

    def _keep(self, x: Tensor, channels: int) -> None:
        """Add the batch's statistics to the running sums."""
        rows = x.transpose(0, 1).reshape(channels, -1)
        self.mean_sum.mul_(self.fraction).add_(rows.mean(1))
        # Times m / (m - 1), as Caffe stores it.
        self.variance_sum.mul_(self.fraction).add_(rows.var(1, unbiased=rows.shape[1] > 1))
        self.factor.mul_(self.fraction).add_(1)

    def extra_repr(self) -> str:
        return f"{len(self.mean_sum)} channels, eps={self.eps:g}"


class BN(nn.Module):
    """BN of PSPNet, with its running statistics as buffers, or of SegNet.

    PSPNet's uses the batch's statistics if the Module trains and is not frozen.
    """

    names: tuple[str, ...] = ()

    def __init__(self, layer: our_bn.BN, tops: int) -> None:
        super().__init__()
        self.names = layer.weight_names
        self.stores, self.of_batch, self.frozen, self.tops = layer.kind == our_bn.PSPNET, layer.of_batch, layer.frozen, tops
        self.eps, self.momentum, self.unbiased = layer.eps, layer.momentum, layer.unbiased
        for i, name in enumerate(self.names):
            if i < 2 and not layer.frozen:
                self.register_parameter(name, learnt(layer, i))
            else:
                self.register_buffer(name, copied(layer, i))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        slope, bias, *running = (getattr(self, name).reshape(-1, *[1] * (x.ndim - 2)) for name in self.names)
        if not (self.training and not self.frozen if self.stores else self.of_batch):
            return slope * (x - running[0]) / torch.sqrt(running[1] + self.eps) + bias if running else slope * x + bias
        axes = [axis for axis in range(x.ndim) if axis != 1]
        mean, variance = x.mean(axes, keepdim=True), x.var(axes, unbiased=False, keepdim=True)
        numbers = x.numel() // x.shape[1]
        stored = variance * (numbers / (numbers - 1)) if self.unbiased and numbers > 1 else variance
        for name, batch in zip(self.names[2:], (mean, stored)):
            kept = getattr(self, name)
            kept.mul_(self.momentum).add_((1 - self.momentum) * batch.detach().reshape(kept.shape))
        y = slope * (x - mean) / torch.sqrt(variance + self.eps) + bias
        return (y, *(part.detach().reshape(1, -1, 1, 1) for part in (mean, variance))) if self.tops > 1 else y

    def extra_repr(self) -> str:
        return f"{', '.join(self.names)}: {getattr(self, self.names[0]).numel()} channels, eps={self.eps:g}"
