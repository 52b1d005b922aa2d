"""Layers of one bottom that work number by number, without weights: one row of a table a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from golden import GOLDEN, cases, run_case
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes, normal
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.layers import create
from minicaffe.proto import caffe_pb2

pytestmark = pytest.mark.usefixtures("device")

Array = NDArray[Any]
LN2, LN3, LN4 = math.log(2), math.log(3), math.log(4)
HALF_LN3 = LN3 / 2

HAND: list[tuple[str, Sequence[float], Sequence[float], Sequence[float]]] = [
    ('type: "AbsVal"', [-2, 0, 3], [2, 0, 3], [-1, 0, 1]),
    ('type: "BNLL"', [0, LN3, -1e3, 1e3], [LN2, LN4, 0, 1e3], [0.5, 0.75, 0, 1]),
    ('type: "Clip" clip_param { min: -1 max: 2 }', [-3, -1, 0.5, 2, 4], [-1, -1, 0.5, 2, 2], [0, 1, 1, 1, 0]),
    ('type: "ELU" elu_param { alpha: 2 }', [3, 0, -LN4, -1e3], [3, 0, -1.5, -2], [1, 2, 0.5, 0]),
    ('type: "Exp" exp_param { base: 2 scale: 3 shift: 1 }', [0, 1, -1], [2, 16, 0.25], [6 * LN2, 48 * LN2, 0.75 * LN2]),
    ('type: "Exp"', [0, LN2], [1, 2], [1, 2]),
    ('type: "HardSigmoid"', [-3, -1, 0, 2, 3], [0, 0.3, 0.5, 0.9, 1], [0, 0.2, 0.2, 0.2, 0]),
    ('type: "HardSigmoid" hardsigmoid_param { alpha: 0.5 beta: 0.25 }', [-1, 0, 1, 2], [0, 0.25, 0.75, 1], [0, 0.5, 0.5, 0]),
    ('type: "HardSwish"', [-4, -3, 0, 1.5, 3, 4], [0, 0, 0, 1.125, 3, 4], [0, 0, 0.5, 1, 1, 1]),
    ('type: "Log" log_param { base: 2 scale: 3 shift: 1 }', [0, 1, 5], [0, 2, 4], [3 / LN2, 0.75 / LN2, 3 / 16 / LN2]),
    ('type: "Log"', [1, 2], [0, LN2], [1, 0.5]),
    ('type: "Mish"', [0, LN2, -LN2, 1e3, -1e3], [0, 0.8 * LN2, -LN2 * 5 / 13, 1e3, 0],
     [0.6, 0.8 + 0.24 * LN2, 5 / 13 - LN2 * 48 / 169, 1, 0]),
    ('type: "NegReLU"', [0, 1.5, -2], [0, 0, -2], [0, 0, 1]),
    ('type: "Power" power_param { power: 2 scale: 3 shift: 1 }', [1, 0, 2], [16, 1, 49], [24, 6, 42]),
    ('type: "Power" power_param { scale: 3 shift: 1 }', [1, 0, 2], [4, 1, 7], [3, 3, 3]),
    ('type: "Power" power_param { power: 0 scale: 2 }', [1, 0, 2], [1, 1, 1], [0, 0, 0]),
    ('type: "Power" power_param { power: 2 scale: 0 shift: 3 }', [1, 0, 2], [9, 9, 9], [0, 0, 0]),
    ('type: "Power" power_param { power: 0.5 scale: 8 shift: 1 }', [1, 0, 2], [3, 1, 17**0.5], [4 / 3, 4, 4 / 17**0.5]),
    ('type: "Power" power_param { power: -1 shift: 1 }', [1, 0, 2], [0.5, 1, 1 / 3], [-0.25, -1, -1 / 9]),
    ('type: "ReLU"', [-4, 0, 2], [0, 0, 2], [0, 0, 1]),
    ('type: "ReLU" relu_param { negative_slope: 0.25 }', [-4, 0, 2], [-1, 0, 2], [0.25, 0.25, 1]),
    ('type: "ReLU6"', [-3, 0, 0.5, 5.5, 6, 7], [0, 0, 0.5, 5.5, 6, 6], [0, 0, 1, 1, 0, 0]),
    ('type: "ReLU6" relu6_param { negative_slope: 0.5 }', [-3, 0, 0.5, 6, 7], [-1.5, 0, 0.5, 6, 6], [0.5, 0.5, 1, 0, 0]),
    ('type: "ReLU6" relu6_param { negative_slope: -2 }', [-4, -3, -1, 2], [6, 6, 2, 2], [0, 0, -2, 1]),
    ('type: "SeLu"', [0, 2, -1], [0, 2.101401974, -1.111330737], [1.758099319, 1.050700987, 0.646768603]),
    ('type: "Sigmoid"', [0, LN3], [0.5, 0.75], [0.25, 0.1875]),
    ('type: "Swish" swish_param { beta: 2 }', [0, HALF_LN3, 1e3, -1e3], [0, 0.75 * HALF_LN3, 1e3, 0],
     [0.5, 0.75 + 0.375 * HALF_LN3, 1, 0]),
    ('type: "TanH"', [0, LN2, -LN2, 40], [0, 0.6, -0.6, 1], [1, 0.64, 0.64, 0]),
    ('type: "Threshold" threshold_param { threshold: 0.5 }', [-1, 0.5, 0.75], [0, 0, 1], [0, 0, 0]),
]  # fmt: skip
"""The layer, x, y, and dy / dx."""
KINDS = list(dict.fromkeys(text.split('"')[1] for text, *_ in HAND))


@pytest.mark.parametrize(("text", "x", "y", "slope"), HAND, ids=[text for text, *_ in HAND])
def test_by_hand(text: str, x: list[float], y: list[float], slope: list[float]) -> None:
    """SeLu's constants are of float32."""
    check_by_hand(text, x, y, slope, rtol=1e-7 if "SeLu" in text else 1e-12)


@pytest.mark.parametrize("text", [text for text, *_ in HAND])
def test_shapes(text: str) -> None:
    check_shapes(text)


@pytest.mark.parametrize("case", [case for kind in KINDS for case in cases(kind)] if GOLDEN.is_dir() else cases("ReLU"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * (np.exp(np.minimum(x, 0)) - 1))


DEFINED: list[tuple[str, Callable[[Array], Array], float | None]] = [
    ('type: "AbsVal"', np.abs, 0),
    ('type: "BNLL"', lambda x: np.log(1 + np.exp(x)), None),
    ('type: "ELU" elu_param { alpha: 0.5 }', lambda x: elu(x, 0.5), 0),
    ('type: "Exp" exp_param { scale: 0 }', np.ones_like, None),
    ('type: "Exp" exp_param { base: 0.5 scale: 2 shift: -1 }', lambda x: 0.5 ** (2 * x - 1), None),
    ('type: "Log" log_param { base: 0.5 scale: 2 shift: 9 }', lambda x: np.log(2 * x + 9) / np.log(0.5), None),
    ('type: "Mish"', lambda x: x * np.tanh(np.log(1 + np.exp(x))), None),
    ('type: "NegReLU"', lambda x: np.minimum(x, 0), 0),
    ('type: "Power" power_param {}', lambda x: x, None),
    ('type: "Power" power_param { power: 3 }', lambda x: x**3, None),
    ('type: "Power" power_param { power: -1.5 scale: 0.3 shift: 4 }', lambda x: (0.3 * x + 4) ** -1.5, None),
    ('type: "Power" power_param { power: 2 scale: -1 shift: 0.5 }', lambda x: (0.5 - x) ** 2, None),
    *(
        (f'type: "ReLU" relu_param {{ negative_slope: {slope} }}', lambda x, slope=slope: np.where(x > 0, x, slope * x), 0)
        for slope in (-0.5, 0.0, 0.25, 1.5)
    ),
    ('type: "SeLu" selu_param { lambda: 1.5 alpha: 0.75 }', lambda x: 1.5 * elu(x, 0.75), 0),
    ('type: "Sigmoid"', sigmoid, None),
    *(
        (f'type: "Swish" swish_param {{ beta: {beta} }}', lambda x, beta=beta: x * sigmoid(beta * x), None)
        for beta in (-1.5, 0, 1, 2)
    ),
    ('type: "TanH"', np.tanh, None),
    ('type: "HardSigmoid"', lambda x: np.clip(0.2 * x + 0.5, 0, 1), 2.5),
    ('type: "HardSwish"', lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 3),
    ('type: "Clip" clip_param { min: -1 max: 1 }', lambda x: np.clip(x, -1, 1), 1),
    ('type: "ReLU6" relu6_param { negative_slope: 0.5 }', lambda x: np.minimum(np.where(x > 0, x, 0.5 * x), 6), 0),
]
"""The layer, its definition, and its kink, also at the other side of 0."""


@pytest.mark.parametrize(("text", "definition", "kink"), DEFINED, ids=[text for text, *_ in DEFINED])
def test_definition_and_gradient(text: str, definition: Callable[[Array], Array], kink: float | None) -> None:
    x = normal(2, 3, 5)
    if kink is not None:
        x[abs(abs(x) - kink) < 1e-3] += 0.01
    case = LayerCase(text, x)
    np.testing.assert_allclose(case.forward()[0], definition(x), rtol=1e-6, atol=1e-12)
    assert case.check_gradient().elements == 30


@pytest.mark.parametrize(
    "text", ['type: "Clip" clip_param { min: -1 max: 2 }', 'type: "HardSigmoid"', 'type: "HardSwish"', 'type: "ReLU6"']
)
def test_gradient_between_two_kinks(text: str) -> None:
    LayerCase(text, [-30.0, -4.0, -2.0, -0.5, 0.5, 1.5, 5.5, 6.5]).check_gradient()


def test_numbers_outside_the_domain() -> None:
    assert LayerCase('type: "Exp"', [1e4]).forward()[0] == np.inf
    np.testing.assert_array_equal(LayerCase('type: "Log"', [0.0, -1.0]).forward()[0], [-np.inf, np.nan])
    assert np.isnan(LayerCase('type: "Power" power_param { power: 0.5 }', [-1.0]).forward()[0]).all()
    for slope in (0.0, 0.25):
        case = LayerCase(f'type: "ReLU" relu_param {{ negative_slope: {slope} }}', [np.nan, -1.0])
        assert np.isnan(case.forward()[0]).tolist() == [True, False]


@pytest.mark.parametrize("x", [1e30, 50.0])
def test_far_from_0(x: float) -> None:
    """Neither overflow nor a loss of the small side: what a symmetry says."""
    for kind, wanted in (("Sigmoid", [1, 0]), ("TanH", [1, -1]), ("BNLL", [x, 0]), ("Mish", [x, 0]), ("Swish", [x, 0])):
        np.testing.assert_allclose(LayerCase(f'type: "{kind}"', [x, -x]).forward()[0], wanted, rtol=1e-12, atol=1e-19)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((f'"Exp" exp_param {{ base: {base} }}', f"base must be > 0, or -1 for e, got {base}") for base in (0, -2)),
        *((f'"Log" log_param {{ base: {base} }}', f"must be > 0 and not 1, or -1 for e, got {base}") for base in (0, 1, -2)),
        ('"Clip" clip_param { min: 2 max: 1 }', 'Clip layer "layer": needs min <= max, got min 2 and max 1'),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(f"type: {text}", [1.0])


def test_clip_without_one_end() -> None:
    param = caffe_pb2.LayerParameter(name="layer", type="Clip")
    param.clip_param.min = 2
    with pytest.raises(LayerError, match='Clip layer "layer": clip_param needs both min and max'):
        create(param).connect([Blob((2,))], [Blob()])


def test_relu_param_has_no_effect_on_relu6() -> None:
    with pytest.warns(PrototxtWarning, match='ReLU6 layer "layer": relu_param has no effect; negative_slope is a field'):
        case = LayerCase('type: "ReLU6" relu_param { negative_slope: 0.5 }', [-2.0])
    assert case.forward()[0].tolist() == [0]
