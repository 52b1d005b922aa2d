"""The learning rate range test: a short training while the rate grows, to find a base_lr.

    rate_i = low * (high / low)^(i / (N - 1))                      iteration i = 0 ... N - 1
    mean_i = beta * mean_{i-1} + (1 - beta) * loss_i,  smoothed_i = mean_i / (1 - beta^{i+1}),  beta = 1 - 10 / N
    proposal = the rate at which the smoothed loss falls fastest, but at most a tenth of the rate at which it is least

The rate of a smoothed loss is the mean, over the same iterations with the same weights, of the logarithms of the rates.
The test ends when the smoothed loss is 4 times its least value, or the loss is not finite.
Source: Smith 2015, "Cyclical Learning Rates for Training Neural Networks", section 3.3, where the rate grows linearly. The
exponential growth, the smoothed loss, the factor 4 and the tenth are Gugger's, "How Do You Find A Good Learning Rate", 2018.
The rate of the fastest fall is fastai's lr_steep. On few images, or with clipped gradients, the least loss lies far above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minicaffe.data.charts import INK, PAPER, QUIET, Chart, Panel, light, linear_axis, log_axis
from minicaffe.data.drawings import colour
from minicaffe.errors import Error, SolverError, on_one_line

from .signals import Action, Request

if TYPE_CHECKING:
    from .solver import Progress, SGDSolver

ITERATIONS, LOW, HIGH = 100, 1e-6, 10.0
"""The defaults."""
FEWEST = 40
MEMORY = 10
"""The parts of the test: the smoothed loss is about the mean of one of them, and the first of them does not count."""
DIVERGED = 4.0
"""The test ends when the smoothed loss is this many times its least value."""
MARGIN = 10.0
SURE = 6.0
"""The loss must fall by this many standard deviations of the smoothed loss, as noise alone does in 1 test of 100."""

Floats = NDArray[np.float64]


class LrRangeTest:
    """A learning rate range test. It trains the solver, which must not be used for anything else afterwards.

    Parameters
    ----------
    solver : SGDSolver
        The solver. Its lr_policy, tests and snapshots are not used.
    iterations : int, default 100
        The most iterations.
    low, high : float
        The first and the last rate.

    Attributes
    ----------
    losses : list of float
        The loss of each iteration.
    ended : str
        The reason for the end before the last iteration, or "".

    Raises
    ------
    Error
        There are too few iterations, or low is not below high.
    """

    def __init__(self, solver: SGDSolver, iterations: int = ITERATIONS, low: float = LOW, high: float = HIGH) -> None:
        if iterations < FEWEST:
            raise Error(f"a learning rate range test needs at least {FEWEST} iterations, got {iterations}")
        if not 0 < low < high:
            raise Error(f"the learning rates must grow from above 0, got {low:g} to {high:g}")
        self.solver, self.iterations, self.low, self.high = solver, iterations, low, high
        self.losses: list[float] = []
        self.ended = ""
        self._skipped = iterations // MEMORY
        self._step = (high / low) ** (1 / (iterations - 1))
        param = solver.param
        param.lr_policy, param.base_lr, param.gamma = "exp", low, self._step
        param.warmup_iter = param.test_interval = param.snapshot = param.display = 0
        param.snapshot_after_train = False
        solver.iter = 0
        solver.on_progress(self._progress)

    def run(self, request: Request = lambda: Action.NONE) -> None:
        """Train until the loss diverges or the last rate is reached.

        Parameters
        ----------
        request : callable, optional
            Called after each iteration; Action.STOP ends the test.
        """
        self.solver.set_action_function(lambda: Action.STOP if self.ended else request())
        try:
            self.solver.step(self.iterations)
        except SolverError:
            if math.isfinite(self.solver.smoothed_loss):
                raise
            self.ended = "the loss is not finite"

    def _progress(self, progress: Progress) -> None:
        self.losses.append(progress.last_loss)
        smoothed = self.smoothed[self._skipped :]
        if smoothed.size and smoothed[-1] > DIVERGED * smoothed.min():
            self.ended = f"the smoothed loss is {DIVERGED:g} times its least value"

    @property
    def smoothed(self) -> Floats:
        """The smoothed loss of each iteration."""
        return self._smooth(self.losses)

    @property
    def rates(self) -> Floats:
        """The rate of the last update before each loss. The first loss has none, and the first rate."""
        found: Floats = self.low * self._step ** np.maximum(np.arange(len(self.losses)) - 1.0, 0)
        return found

    @property
    def smoothed_rates(self) -> Floats:
        """The rate of each smoothed loss."""
        return np.exp(self._smooth(np.log(self.rates)))

    def _smooth(self, values: Iterable[float]) -> Floats:
        beta, mean, found = 1 - MEMORY / self.iterations, 0.0, []
        for i, value in enumerate(values, 1):
            mean = beta * mean + (1 - beta) * value
            found.append(mean / (1 - beta**i))
        return np.array(found)

    @property
    def least(self) -> int:
        """The index of the least smoothed loss. Raises Error if there is no such minimum."""
        if self.problem:
            raise Error(self.problem)
        return self._least

    @property
    def _least(self) -> int:
        return self._skipped + int(self.smoothed[self._skipped :].argmin())

    @property
    def problem(self) -> str:
        """The reason for no proposal and the next step, or ""."""
        smoothed = self.smoothed
        if len(smoothed) <= 2 * self._skipped:
            reason = self.ended or "it was stopped"
            return f"the test ended after {len(smoothed)} iterations, as {reason}: {self._smaller}"
        place = self._least
        if place <= self._skipped + 1:
            return f"the loss never fell: {self._smaller}, or start from other weights"
        first, last = smoothed[self._skipped], smoothed[place]
        if first - last < SURE * self._noise(place):
            fell = f"from {first:.4g} to {last:.4g}"
            more = "more iterations, a larger batch, or a higher last rate (--lr-max)"
            return f"the loss fell no further than its noise, {fell}: give {more}"
        if place == len(smoothed) - 1 and not self.ended:
            return f"the loss still falls at the rate {self.smoothed_rates[-1]:.2g}: give a higher last rate (--lr-max)"
        return ""

    def _noise(self, until: int) -> float:
        """Return the standard deviation of the smoothed loss, from that of the losses before an index."""
        around = np.array(self.losses[:until]) - self.smoothed[:until]
        return float(around.std()) / math.sqrt(2 * self.iterations / MEMORY - 1)  # sqrt((1 - beta) / (1 + beta))

    @property
    def steepest(self) -> int:
        """The index at which the smoothed loss falls fastest before its least value, over a tenth of the test."""
        half = max(self._skipped // 2, 1)
        part = self.smoothed[self._skipped - half : self.least + half + 1]
        return self._skipped + int((part[2 * half :] - part[: -2 * half]).argmin()) if len(part) > 2 * half else self.least

    @property
    def proposal(self) -> float:
        """The rate of the fastest fall, but at most a tenth of that of the least smoothed loss, with 2 digits."""
        rates = self.smoothed_rates
        return float(f"{min(rates[self.steepest], rates[self.least] / MARGIN):.1e}")

    @property
    def _smaller(self) -> str:
        return "give a smaller first rate (--lr-min)"

    def draw(self) -> Image.Image:
        """Return the loss by rate as a picture, with the proposal or the reason for none. It needs 3 losses."""
        chart = Chart(1000, 520)
        rates, smoothed, stroke = self.smoothed_rates, self.smoothed, colour(3)
        part = smoothed if self.problem else smoothed[self._skipped : self.least + 1]
        margin = 0.25 * float(np.ptp(part))
        y = linear_axis(max(float(part.min()) - margin, 0.0), float(part.max()) + margin)
        panel = Panel(chart, (70, 80, 960, 460), log_axis(self.low, float(self.rates[-1])), y, "loss (bold: smoothed)")
        net = self.solver.net
        chart.text(70, 20, f"Learning rate range test: {on_one_line(net.name or str(net.file))[:80]}", size=17)
        chart.text(70, 42, f"{len(rates)} of {self.iterations} iterations{f': {self.ended}' * bool(self.ended)}", colour=QUIET)
        chart.text(515, 490, "learning rate, logarithmic", "ma")
        panel.line(self.rates[1:], self.losses[1:], light(stroke, 0.65), 1)
        panel.line(rates[1:], smoothed[1:], stroke, 3)
        if self.problem:
            chart.text(78, 94, f"no proposal: {self.problem.partition(':')[0]}", "lm", colour=colour(1))
            return chart.image()
        ((across, _),) = panel.places([self.proposal], [y.low]).tolist()
        chart.line([(across, 80), (across, 460)], colour(1), 2)
        where, anchor = (across + 8, "lm") if across < 515 else (across - 8, "rm")
        chart.text(where, 94, f"--lr {self.proposal:g}", anchor, colour=colour(1))
        for place, text in ((self.steepest, "falls fastest"), (self.least, "least")):
            ((x, down),) = panel.places(rates[place : place + 1], smoothed[place : place + 1]).tolist()
            chart.dot(x, down, INK, 6, hole=PAPER)
            chart.text(x - 10, down + 14, f"{text}, at {rates[place]:.2g}", "rm")
        return chart.image()
