"""The update rules by numbers worked by hand, two updates of one weight each, and what holds for every rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.errors import SolverError
from minicaffe.formats.prototxt import parse_solver
from minicaffe.training import updates
from minicaffe.training.solvers import SOLVERS, get_solver


def run(rule, gradients: list[float], histories: int, *numbers: float) -> tuple[list[float], list[float]]:
    """The steps that a rule makes of gradients, one after the other, and its histories after the last."""
    history = [np.zeros(1) for _ in range(histories)]
    steps = []
    for gradient in gradients:
        diff = np.array([float(gradient)])
        rule(diff, *history, *numbers)
        steps.append(float(diff[0]))
    return steps, [float(array[0]) for array in history]


def test_sgd_by_hand():
    """rate 0.5, momentum 0.5: h = 0.5 * 4 = 2, then 0.5 * 2 + 0.5 * 2 = 2."""
    assert run(updates.sgd, [4, 2], 1, 0.5, 0.5) == ([2, 2], [2])


def test_nesterov_by_hand():
    """h = 2: step 1.5 * 2 - 0.5 * 0 = 3; then h = 1 + 1 = 2: step 1.5 * 2 - 0.5 * 2 = 2."""
    assert run(updates.nesterov, [4, 2], 1, 0.5, 0.5) == ([3, 2], [2])


def test_adagrad_by_hand():
    """h = 9: step 2 * 3 / (3 + 1); then h = 9 + 16: step 2 * 4 / (5 + 1)."""
    steps, history = run(updates.adagrad, [3, 4], 1, 2.0, 1.0)
    assert steps == pytest.approx([6 / 4, 8 / 6]) and history == [25]


def test_rmsprop_by_hand():
    """rms_decay 0.75: h = 4 / 4 = 1: step 2 * 2 / (1 + 1); then h = 0.75 + 3.25 = 4 for g^2 = 13: step 2 sqrt(13) / (2 + 1)."""
    steps, history = run(updates.rmsprop, [2, math.sqrt(13)], 1, 2.0, 0.75, 1.0)
    assert steps == pytest.approx([2, 2 * math.sqrt(13) / 3]) and history == pytest.approx([4])


def test_adadelta_by_hand():
    """momentum 0.5, delta 1: h = 0.5 * 6 = 3; s = sqrt(6) * sqrt(1 / 4); u = 0.5 * 1.5; step = 2 s. Then h = 1.5 + 0.5."""
    steps, history = run(updates.adadelta, [math.sqrt(6), 1], 2, 2.0, 0.5, 1.0)
    first, second = math.sqrt(6) / 2, math.sqrt(1.75 / 3)
    assert steps == pytest.approx([2 * first, 2 * second])
    assert history == pytest.approx([2, 0.375 + 0.5 * 1.75 / 3])


def test_adam_by_hand():
    """momentum 0.5, momentum2 0.75, delta 1: m = 1, v = 4 / 4 = 1: step 2 * 1 / (1 + 1); then m = 0, v = 0.75 + 1 / 4 = 1."""
    steps, history = run(updates.adam, [2, -1], 2, 2.0, 0.5, 0.75, 1.0)
    assert steps == pytest.approx([1, 0]) and history == pytest.approx([0, 1])


def test_adams_correction_by_hand():
    assert updates.adam_correction(1, 0.5, 0.75) == pytest.approx(0.5 / 0.5)
    assert updates.adam_correction(2, 0.5, 0.75) == pytest.approx(math.sqrt(7 / 16) / 0.75)


def test_adams_first_step_is_the_rate_whatever_the_gradient():
    rate = 0.1 * updates.adam_correction(1, 0.9, 0.999)
    for gradient in (1e-3, 1.0, -70.0):
        (step,), _ = run(updates.adam, [gradient], 2, rate, 0.9, 0.999, 0.0)
        assert step == pytest.approx(math.copysign(0.1, gradient))


RULES = {
    updates.sgd: (1, 0.1, 0.9),
    updates.nesterov: (1, 0.1, 0.9),
    updates.adagrad: (1, 0.1, 1e-8),
    updates.rmsprop: (1, 0.1, 0.9, 1e-8),
    updates.adadelta: (2, 1.0, 0.95, 1e-6),
    updates.adam: (2, 0.1, 0.9, 0.999, 1e-8),
}
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)


@every_rule
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_type_stays_and_no_gradient_is_no_step(rule, dtype):
    histories, *numbers = RULES[rule]
    arrays = [np.zeros((2, 3), dtype) for _ in range(histories + 1)]
    rule(*arrays, *numbers)
    for array in arrays:
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, 0)


@every_rule
@given(gradients=st.lists(st.floats(-100, 100), min_size=1, max_size=6), split=st.integers(0, 6))
def test_each_number_is_updated_by_itself(rule, gradients, split):
    """A blob updated in parts comes out as a blob updated whole."""
    histories, *numbers = RULES[rule]
    whole = [np.array(gradients, np.float32), *(np.full(len(gradients), 0.5, np.float32) for _ in range(histories))]
    pieces = [array.copy() for array in whole]
    rule(*whole, *numbers)
    for part in (slice(None, split), slice(split, None)):
        rule(*(array[part] for array in pieces), *numbers)
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@every_rule
def test_every_rule_finds_the_bottom_of_a_bowl(rule):
    """loss = (w - 3)^2 / 2; AdaDelta starts too slowly for that, but goes down."""
    histories, *numbers = RULES[rule]
    weight, history = np.zeros(1), [np.zeros(1) for _ in range(histories)]
    for _ in range(2000):
        diff = weight - 3
        rule(diff, *history, *numbers)
        weight -= diff
    assert abs(weight[0] - 3) < (2.5 if rule is updates.adadelta else 0.15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weight_decay(dtype):
    data = np.array([2, -3, 0], dtype)
    for kind, wanted in (("L2", [2, -0.5, 1]), ("L1", [1.5, 0.5, 1])):
        diff = np.ones(3, dtype)
        updates.regularise(data, diff, 0.5, kind)
        np.testing.assert_array_equal(diff, wanted)
        assert diff.dtype == dtype
    updates.regularise(data, diff, 0, "L2")
    np.testing.assert_array_equal(diff, [1.5, 0.5, 1])


@pytest.mark.parametrize("part", [4, 100])
def test_a_blob_is_updated_in_parts(part, monkeypatch):
    """rate 0.5, decay 1, two passes: h = 0.5 (g / 2 + w), w -= h."""
    monkeypatch.setattr(updates, "PART", part)
    net = """net_param {
      layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 5 } } }
      layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 3 } }
    }"""
    solver = get_solver(parse_solver(f'{net} lr_policy: "fixed" base_lr: 0.5 momentum: 0.5 weight_decay: 1 iter_size: 2'))
    weight, bias = solver.net.params["ip"]
    weight.data[...] = np.arange(15.0).reshape(3, 5)
    weight.diff[...] = 8 * np.arange(15.0).reshape(3, 5) + 4
    bias.diff[...] = [2, 4, 6]
    solver.apply_update()
    step = 0.5 * (5 * np.arange(15.0).reshape(3, 5) + 2)
    np.testing.assert_array_equal(weight.diff, step)
    np.testing.assert_array_equal(weight.data, np.arange(15.0).reshape(3, 5) - step)
    np.testing.assert_array_equal(solver.history_blobs[0].data, step)
    np.testing.assert_array_equal(bias.data, [-0.5, -1, -1.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('type: "AdaGrad" momentum: 0.9', "AdaGrad takes no momentum, got 0.9"),
        ('type: "RMSProp" momentum: 0.5', "RMSProp takes no momentum, got 0.5"),
        ('type: "RMSProp" rms_decay: 1', r"rms_decay must be in \[0, 1\), got 1"),
        ('type: "RMSProp" rms_decay: -0.5', r"rms_decay must be in \[0, 1\), got -0.5"),
        ('type: "Adam" momentum: 1', r"momentum must be in \[0, 1\), got 1"),
        ('type: "Adam" momentum2: 1.5', r"momentum2 must be in \[0, 1\), got 1.5"),
        ("solver_type: ADAGRAD momentum: 0.9", "AdaGrad takes no momentum, got 0.9"),
    ],
)
def test_numbers_that_a_rule_cannot_work_with(text, message):
    with pytest.raises(SolverError, match=message):
        get_solver(parse_solver(f'base_lr: 0.1 lr_policy: "fixed" {text}'))


@pytest.mark.parametrize("kind", SOLVERS)
def test_the_deprecated_solver_type_chooses_too(kind):
    net = 'net_param { layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 2 dim: 3 } } } }'
    for text in (f'type: "{kind}"', f"solver_type: {kind.upper()}"):
        solver = get_solver(parse_solver(f'base_lr: 0.1 lr_policy: "fixed" {text} {net}'))
        assert type(solver) is SOLVERS[kind] and solver.type == kind
