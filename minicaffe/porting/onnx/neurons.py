"""Element-wise layers."""

from __future__ import annotations

from minicaffe.layers.neuron.functions import (
    BNLL,
    ELU,
    MOST,
    SCALE,
    SHIFT,
    AbsVal,
    Clip,
    Exp,
    HardSigmoid,
    Log,
    Power,
    ReLU6,
    Sigmoid,
    Swish,
    TanH,
    Threshold,
)
from minicaffe.layers.neuron.neuron import Neuron
from minicaffe.layers.neuron.relu import PReLU, ReLU
from minicaffe.registry import exports

from .graph import Dims, Emitter, Graph, Operand, Value


def _one_node(operator: str) -> Emitter:
    return lambda g, layer, bottom, top: [g(operator, bottom[0])]


exports(AbsVal)(_one_node("Abs"))
exports(BNLL)(_one_node("Softplus"))
exports(Sigmoid)(_one_node("Sigmoid"))
exports(TanH)(_one_node("Tanh"))


@exports(ReLU)
def relu(g: Graph, layer: ReLU, bottom: list[Value], top: list[Dims]) -> list[str]:
    slope = layer.negative_slope
    return [g("LeakyRelu", bottom[0], alpha=slope) if slope else g("Relu", bottom[0])]


@exports(ReLU6)
def relu6(g: Graph, layer: ReLU6, bottom: list[Value], top: list[Dims]) -> list[str]:
    slope = layer.negative_slope
    return [g("Min", g("LeakyRelu", bottom[0], alpha=slope), MOST) if slope else g("Clip", bottom[0], 0.0, MOST)]


@exports(HardSigmoid)
def hard_sigmoid(g: Graph, layer: HardSigmoid, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("HardSigmoid", bottom[0], alpha=SCALE, beta=SHIFT)]


@exports(PReLU)
def prelu(g: Graph, layer: PReLU, bottom: list[Value], top: list[Dims]) -> list[str]:
    slopes = layer.blobs[0]
    shape = (slopes.count, *[1] * (bottom[0].rank - 2)) if slopes.shape else (1,)
    return [g("PRelu", bottom[0], g.weight(layer, 0, shape))]


@exports(ELU)
def elu(g: Graph, layer: Neuron, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Elu", bottom[0], alpha=layer.param.elu_param.alpha)]


@exports(Clip)
def clip(g: Graph, layer: Neuron, bottom: list[Value], top: list[Dims]) -> list[str]:
    param = layer.param.clip_param
    return [g("Clip", bottom[0], float(param.min), float(param.max))]


@exports(Exp)
def exp(g: Graph, layer: Exp, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Exp", linear(g, bottom[0], layer.scale, layer.shift))]


@exports(Log)
def log(g: Graph, layer: Log, bottom: list[Value], top: list[Dims]) -> list[str]:
    param = layer.param.log_param
    return [g.name(linear(g, g("Log", linear(g, bottom[0], param.scale, param.shift)), layer.factor, 0.0))]


@exports(Power)
def power(g: Graph, layer: Power, bottom: list[Value], top: list[Dims]) -> list[str]:
    param = layer.param.power_param
    if param.power * param.scale == 0:
        # Caffe ignores x then, also if it is NaN
        constant = float(param.shift) ** param.power if param.power else 1.0
        return [g("Expand", constant, g.shape(bottom[0]))]
    y = linear(g, bottom[0], param.scale, param.shift)
    return [g.name(y) if param.power == 1 else g("Pow", y, float(param.power))]


@exports(Swish)
def swish(g: Graph, layer: Neuron, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Mul", bottom[0], g("Sigmoid", linear(g, bottom[0], layer.param.swish_param.beta, 0.0)))]


@exports(Threshold)
def threshold(g: Graph, layer: Neuron, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g.cast(g("Greater", bottom[0], float(layer.param.threshold_param.threshold)), "float32")]


def linear(g: Graph, x: Operand, scale: float, shift: float) -> Operand:
    """scale x + shift, without nodes for a scale of 1 and a shift of 0."""
    y = x if scale == 1 else g("Mul", x, float(scale))
    return y if shift == 0 else g("Add", y, float(shift))
