"""The learning rate range test: its rates, its smoothed loss, its ends, and what it proposes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from minicaffe import Error
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.training.lr_range import LrRangeTest
from minicaffe.training.signals import Action
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver

QUADRATIC = """layer { name: "x" type: "DummyData" top: "x" top: "y"
  dummy_data_param { shape { dim: 1 dim: 1 } shape { dim: 1 dim: 1 } data_filler { value: 1 } data_filler { value: 3 } } }
layer { name: "w" type: "InnerProduct" bottom: "x" top: "w" inner_product_param { num_output: 1 bias_term: false } }
layer { name: "loss" type: "EuclideanLoss" bottom: "w" bottom: "y" top: "loss" }"""


def quadratic(noise: str = "") -> SGDSolver:
    """The solver of the loss (w - 3)^2 / 2, which falls at rates below 2 and grows above. noise: a filler in place of the 3."""
    param = parse_solver(
        'base_lr: 5 max_iter: 999 snapshot: 1 display: 1 random_seed: 1 lr_policy: "step" gamma: 0.1 stepsize: 2'
    )
    param.warmup_iter, param.warmup_start_lr = 3, 1
    param.net_param.CopyFrom(parse_net(QUADRATIC.replace("value: 3", noise or "value: 3")).param)
    return get_solver(param)


def test_the_rates_and_losses_are_those_of_gradient_descent() -> None:
    test = LrRangeTest(quadratic(), 40, 0.001, 0.5)
    rates = [test.solver.lr]
    test.solver.on_progress(lambda progress: rates.append(progress.lr))
    test.run()
    np.testing.assert_allclose(rates[:40], np.geomspace(0.001, 0.5, 40), rtol=1e-5)
    error, losses = 3.0, []
    for rate in rates[:40]:
        losses.append(error**2 / 2)
        error -= rate * error
    np.testing.assert_allclose(test.losses, losses, rtol=1e-4)
    np.testing.assert_allclose(test.rates, [rates[0], *rates[:39]], rtol=1e-5)
    beta = 0.75
    weights = beta ** np.arange(40)[::-1]
    assert test.smoothed[-1] == pytest.approx(weights @ losses / weights.sum(), rel=1e-4)
    assert np.log(test.smoothed_rates[-1]) == pytest.approx(weights @ np.log(test.rates) / weights.sum())


def test_it_ends_when_the_loss_grows() -> None:
    test = LrRangeTest(quadratic('type: "gaussian" mean: 3 std: 0.5'), 100, 1e-4, 100)
    test.run()
    assert test.ended == "the smoothed loss is 4 times its least value"
    assert len(test.losses) < 100 and test.solver.iter == len(test.losses)
    assert test.smoothed[-1] > 4 * test.smoothed.min() >= test.smoothed[-2]
    assert 0.1 < test.smoothed_rates[test.least] < 2  # from there on it grows
    assert test.steepest < test.least
    assert test.problem == ""
    assert test.draw().size == (1000, 520)


@pytest.mark.parametrize(("least", "is_steepest"), [(90, True), (60, False)])
def test_the_proposal_is_the_rate_of_the_fastest_fall_up_to_a_tenth_of_that_of_the_least_loss(
    least: int, is_steepest: bool
) -> None:
    """The loss falls by 1 in iterations 40 to 50, and slowly by 0.2 to its least value."""
    test = LrRangeTest(quadratic(), 100, 1e-6, 10)
    test.losses = list(np.interp(np.arange(100), [40, 50, least, least + 9], [2, 1, 0.8, 3]))
    steepest, tenth = test.smoothed_rates[test.steepest], test.smoothed_rates[test.least] / 10
    assert test.rates[40] < steepest < test.rates[50] and (steepest < tenth) == is_steepest
    assert test.proposal == pytest.approx(steepest if is_steepest else tenth, rel=0.05)


def test_it_ends_when_the_loss_is_not_finite() -> None:
    test = LrRangeTest(quadratic(), 40, 1e-3, 1e38)
    test.solver.net.params["w"][0].data[...] = 1e3
    test.run()
    assert test.ended in ("the loss is not finite", "the smoothed loss is 4 times its least value")
    test = LrRangeTest(quadratic(), 40, 1e37, 1e38)
    with np.errstate(all="ignore"):
        test.run()
    assert test.ended == "the loss is not finite"
    message = "ended after 1 iterations, as the loss is not finite: give a smaller first rate (--lr-min)"
    with pytest.raises(Error, match=re.escape(message)):
        _ = test.proposal


def test_without_a_least_loss_nothing_is_proposed() -> None:
    still = LrRangeTest(quadratic(), 40, 1e-4, 0.1)
    still.run()
    with pytest.raises(Error, match=r"the loss still falls at the rate 0\.0\d+: give a higher last rate \(--lr-max\)"):
        _ = still.least
    noise = LrRangeTest(quadratic('type: "gaussian" mean: 3 std: 0.5'), 100, 1e-7, 1e-5)
    noise.run()
    with pytest.raises(Error, match=r"the loss fell no further than its noise, from 5\.263 to 3\.803: give more iterations"):
        _ = noise.least
    assert noise.draw().size == (1000, 520)
    never = LrRangeTest(quadratic(), 40, 2.01, 2.1)
    never.run()
    with pytest.raises(
        Error, match=r"the loss never fell: give a smaller first rate \(--lr-min\), or start from other weights"
    ):
        _ = never.least


def test_it_can_be_stopped() -> None:
    test = LrRangeTest(quadratic(), 40, 1e-4, 0.1)
    test.run(lambda: Action.STOP if len(test.losses) == 5 else Action.NONE)
    assert len(test.losses) == 5
    with pytest.raises(Error, match="ended after 5 iterations, as it was stopped"):
        _ = test.least


@pytest.mark.parametrize(("arguments", "message"), [((39,), "at least 40 iterations, got 39"), ((40, 1, 1), "got 1 to 1")])
def test_what_is_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(Error, match=message):
        LrRangeTest(quadratic(), *arguments)  # type: ignore[arg-type]
