"""train --find-lr: a short test that proposes a learning rate, in place of the training."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from minicaffe.training.lr_range import HIGH, ITERATIONS, LOW, LrRangeTest
from minicaffe.training.plot import write_plot
from minicaffe.training.solver import SGDSolver

from .common import refuse
from .options import FiniteRange, option
from .terminal import echo

UNUSED = (
    "out", "log", "film", "csv", "tensorboard", "val", "epochs", "lr", "snapshot", "snapshot_prefix", "keep", "engine",
    "check_finite",
)  # fmt: skip
"""The options that a test does not use."""


@dataclass(frozen=True, kw_only=True)
class FindLrOptions:
    """--find-lr, --lr-min and --lr-max."""

    heading: ClassVar[str] = "Find a learning rate"
    find_lr: bool = option(
        "--find-lr", f"Propose a learning rate instead of training: the rate grows over --iterations ({ITERATIONS})."
    )
    lr_min: float | None = option(
        "--lr-min", f"First rate of --find-lr.  [default: {LOW:g}]", type=FiniteRange(0, min_open=True)
    )
    lr_max: float | None = option(
        "--lr-max", f"Last rate of --find-lr.  [default: {HIGH:g}]", type=FiniteRange(0, min_open=True)
    )

    def check_find_lr(self) -> None:
        """Raise Error for options that do nothing with --find-lr, or without it."""
        if not self.find_lr:
            refuse("without --find-lr", {"--lr-min": self.lr_min, "--lr-max": self.lr_max})
            return
        given: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        refuse("with --find-lr", {f"--{name.replace('_', '-')}": given[name] or None for name in UNUSED})

    def range_test(self, trainer: SGDSolver, iterations: int | None) -> LrRangeTest:
        """Return the test, not run yet. Raises Error."""
        test = LrRangeTest(trainer, iterations or ITERATIONS, self.lr_min or LOW, self.lr_max or HIGH)
        echo(f"--find-lr: {test.iterations} iterations, the rate grows from {test.low:g} to {test.high:g}")
        return test


def report(test: LrRangeTest, plot: str | None) -> None:
    """Draw a test, and print its proposal. Raises Error if it found none."""
    if plot and len(test.losses) > 2:
        write_plot(plot, test.draw())
        echo(f"drawn: {plot}")
    least, steepest = test.least, test.steepest
    if test.ended:
        echo(f"ended after {len(test.losses)} iterations: {test.ended}")
    echo(f"the smoothed loss falls fastest at the rate {test.smoothed_rates[steepest]:.2g}")
    echo(f"the smoothed loss is least at the rate {test.smoothed_rates[least]:.2g}: {test.smoothed[least]:.4g}")
    echo("proposal, the first of these rates, but at most a tenth of the second:")
    echo(f"--lr {test.proposal:g}")
