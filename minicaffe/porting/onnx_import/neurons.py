"""Element-wise operators of one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .builder import Builder, imports
from .node import Node, RefusedError

LARGEST = float(np.finfo(np.float32).max)


def _layer(kind: str, **fields: Any) -> Any:
    return lambda b, node: [b(kind, [b.blob(node.inputs[0])], **fields)]


PLAIN: Mapping[str, Any] = {
    "Relu": _layer("ReLU"),
    "Sigmoid": _layer("Sigmoid"),
    "Tanh": _layer("TanH"),
    "Abs": _layer("AbsVal"),
    "Exp": _layer("Exp"),
    "Log": _layer("Log"),
    "Softplus": _layer("BNLL"),
    "Neg": _layer("Power", scale=-1.0),
    "Sqrt": _layer("Power", power=0.5),
    "Reciprocal": _layer("Power", power=-1.0),
    "minicaffe.Swish": _layer("Swish"),
}
for operator, function in PLAIN.items():
    imports(operator)(function)


@imports("LeakyRelu")
def leaky_relu(b: Builder, node: Node) -> list[str]:
    return [b("ReLU", [b.blob(node.inputs[0])], negative_slope=node.get("alpha", 0.01))]


@imports("Elu")
def elu(b: Builder, node: Node) -> list[str]:
    return [b("ELU", [b.blob(node.inputs[0])], alpha=node.get("alpha", 1.0))]


@imports("PRelu")
def prelu(b: Builder, node: Node) -> list[str]:
    """One slope, or one a channel."""
    x, slope = b.shape(node.inputs[0]), b.weight(node.inputs[1])
    shape = (1,) * (len(x) - slope.ndim) + slope.shape
    if slope.size == 1:
        return [b("PReLU", [b.blob(node.inputs[0])], [slope.reshape(())], channel_shared=True)]
    if len(x) < 2 or shape != (1, x[1], *(1,) * (len(x) - 2)):
        raise RefusedError(f"slopes of shape {slope.shape} (PReLU has one a channel)")
    return [b("PReLU", [b.blob(node.inputs[0])], [slope.reshape(-1)])]


@imports("Clip")
def clip(b: Builder, node: Node) -> list[str]:
    low, high = (b.numbers(node, i, name) for i, name in ((1, "min"), (2, "max")))
    return [clipped(b, b.blob(node.inputs[0]), low[0] if low else -LARGEST, high[0] if high else LARGEST)]


def clipped(b: Builder, x: str, low: float, high: float) -> str:
    """x within [low, high]: ReLU and ReLU6 where they are that."""
    low, high = max(float(low), -LARGEST), min(float(high), LARGEST)
    if low == 0 and high == LARGEST:
        return b("ReLU", [x])
    if low == 0 and high == 6:
        return b("ReLU6", [x])
    return b("Clip", [x], min=low, max=high)


@imports("HardSigmoid")
def hard_sigmoid(b: Builder, node: Node) -> list[str]:
    return [_hard_sigmoid(b, b.blob(node.inputs[0]), node.get("alpha", 0.2), node.get("beta", 0.5))]


@imports("HardSwish")
def hard_swish(b: Builder, node: Node) -> list[str]:
    x = b.blob(node.inputs[0])
    return [b("Eltwise", [x, _hard_sigmoid(b, x, 1 / 6, 0.5)], operation=0)]


@imports("Mish")
def mish(b: Builder, node: Node) -> list[str]:
    x = b.blob(node.inputs[0])
    return [b("Eltwise", [x, b("TanH", [b("BNLL", [x])])], operation=0)]


def _hard_sigmoid(b: Builder, x: str, alpha: float, beta: float) -> str:
    if np.float32(alpha) == np.float32(0.2) and beta == 0.5:
        return b("HardSigmoid", [x])
    return clipped(b, b("Power", [x], scale=alpha, shift=beta), 0, 1)


@imports("Identity", "Dropout", "Cast")
def same(b: Builder, node: Node) -> list[str]:
    """Nothing to compute: Dropout is its input in TEST. A Cast to whole numbers is not."""
    if node.op == "Cast" and node.get("to", 1) not in (1, 10, 11, 16):  # float, float16, double, bfloat16
        raise RefusedError("blobs hold no whole numbers")
    if len(node.outputs) > 1 and node.outputs[1] in b.read:
        raise RefusedError("its mask has no layer")
    return [b.blob(node.inputs[0])]
