"""The record of a training: one list of facts, which the film, the plot, the CSV file and TensorBoard's events read.

    solver.record.on_update(lambda update: print(update.iteration, update.values))

It does not change the training: it reads the outputs of passes that the solver has made.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minicaffe.blob import Arrays
from minicaffe.net import Net

from .validation import COCO, VOC, Validated

if TYPE_CHECKING:
    from .solver import Progress, SGDSolver

LOSS = "the loss"
"""The loss of all outputs and ranks, among the outputs' names."""


@dataclass(frozen=True)
class Update:
    """The facts of an iteration.

    Attributes
    ----------
    iteration : int
        The number of updates.
    seconds : float
        Since the training began, without the pauses between its runs.
    lr : float
        The learning rate of the next update.
    values : dict of str to float
        The loss, under the name LOSS, and each of the train net's outputs of one number.
    """

    iteration: int
    seconds: float
    lr: float
    values: dict[str, float]


@dataclass(frozen=True)
class NetTest:
    """A test during the training: the means of a test net's outputs of one number.

    Attributes
    ----------
    iteration : int
        The number of updates.
    net : int
        The test net's index. The validation's follows those of the test nets.
    outputs : dict of str to float
        The outputs by name; None if not finite.
    """

    iteration: int
    net: int
    outputs: dict[str, float | None]


class Record:
    """The facts of a training so far, in the order of the iterations.

    Parameters
    ----------
    solver : SGDSolver
        The solver of the training, after its `Validation` is made.

    Attributes
    ----------
    names : list of str
        The names of an update's values.
    iterations, seconds, rates : array
        The facts of each update.
    values : dict of str to array
        The values of each update, by name.
    tests : list of NetTest
        The tests and validations.
    scores : list of str
        The outputs, of all nets, that are no losses.

    Notes
    -----
    `solver.record` is made at its first use and knows the iterations from then on.
    If a restored training repeats iterations, they replace the earlier ones.
    """

    def __init__(self, solver: SGDSolver) -> None:
        self._solver = solver
        self.names = [LOSS, *single_outputs(solver.net)]
        self.iterations, self.seconds, self.rates = array("q"), array("d"), array("d")
        self.values = {name: array("d") for name in self.names}
        self.tests: list[NetTest] = []
        self._earlier = 0.0  # seconds of earlier runs
        self._began: float | None = None
        self._on_update: list[Callable[[Update], object]] = []
        self._on_test: list[Callable[[NetTest], object]] = []
        solver.on_progress(self._progress)
        solver.on_test(self._tested)
        if solver.validation:
            solver.validation.on_validated(self._validated)

    @property
    def scores(self) -> list[str]:
        nets = [self._solver.net, *self._solver.test_nets]
        names = [name for net in nets for name in single_outputs(net) if not net.blob_loss_weights[name]]
        return list(dict.fromkeys([*names, *((VOC, COCO) if self._solver.validation else ())]))

    @property
    def test_names(self) -> list[tuple[int, str]]:
        """The outputs that tests will have: each with its test net's index."""
        validation, nets = self._solver.validation, self._solver.test_nets
        found = [(i, name) for i, net in enumerate(nets) for name in single_outputs(net)]
        return found + [(len(nets), name) for name in (validation.names if validation else ())]

    def source(self, net: int) -> str:
        """Return a short name of a test net: "test", "test0" if there are several, or "val" for the validation."""
        count = len(self._solver.test_nets)
        return "val" if net >= count else f"test{net}" if count > 1 else "test"

    def on_update(self, report: Callable[[Update], object]) -> None:
        """Add a function that is called after each iteration with its Update."""
        self._on_update.append(report)

    def on_test(self, report: Callable[[NetTest], object]) -> None:
        """Add a function that is called after each test and validation with its NetTest, in rank 0."""
        self._on_test.append(report)

    def add(self, update: Update) -> None:
        """Append an update, without reporting it. It replaces those from its iteration on."""
        place = bisect_left(self.iterations, update.iteration)
        columns: list[array[Any]] = [self.iterations, self.seconds, self.rates, *self.values.values()]
        for column in columns:
            del column[place:]
        del self.tests[bisect_left(self.tests, update.iteration, key=_iteration) :]
        self.iterations.append(update.iteration)
        self.seconds.append(update.seconds)
        self.rates.append(update.lr)
        for name, values in self.values.items():
            values.append(update.values.get(name, math.nan))

    def add_test(self, test: NetTest) -> None:
        """Append a test, without reporting it. It replaces that of its net and iteration, and those of later iterations."""
        place = bisect_left(self.tests, test.iteration, key=_iteration)
        others = [one for one in self.tests[place:] if one.iteration == test.iteration and one.net != test.net]
        self.tests[place:] = [*others, test]

    def go_on_from(self, seconds: float) -> None:
        """Count the seconds from this number on, those of earlier runs of the training."""
        self._earlier, self._began = seconds, None

    def between(self, after: int, until: int) -> tuple[list[int], dict[str, list[float]]]:
        """Return the iterations > after and <= until, and the values of each."""
        part = slice(bisect_right(self.iterations, after), bisect_right(self.iterations, until))
        return list(self.iterations[part]), {name: list(column[part]) for name, column in self.values.items()}

    def tests_between(self, after: int, until: int) -> list[NetTest]:
        """Return the tests of iterations > after and <= until."""
        first, last = (bisect_right(self.tests, iteration, key=_iteration) for iteration in (after, until))
        return self.tests[first:last]

    def _progress(self, progress: Progress) -> None:
        blobs = self._solver.net.blobs
        values = {name: float(blobs[name].read_data().sum()) for name in self.names[1:]}
        now = time.monotonic()
        if self._began is None:
            self._began = now - 1 / progress.rate  # the rate of the first iteration counts from the step's beginning
        update = Update(
            progress.iteration, self._earlier + now - self._began, progress.lr, {LOSS: progress.last_loss, **values}
        )
        self.add(update)
        for report in self._on_update:
            report(update)

    def _tested(self, index: int, means: Arrays) -> None:
        names = single_outputs(self._solver.test_nets[index])
        self._report(self._solver.iter, index, {name: float(means[name].sum()) for name in names})

    def _validated(self, done: Validated) -> None:
        self._report(done.iteration, len(self._solver.test_nets), done.numbers)

    def _report(self, iteration: int, net: int, outputs: dict[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in outputs.items()}
        test = NetTest(iteration, net, finite)
        self.add_test(test)
        for report in self._on_test:
            report(test)


def _iteration(test: NetTest) -> int:
    return test.iteration


def single_outputs(net: Net) -> list[str]:
    """Return the outputs that are one number."""
    return [name for name in net.outputs if net.blobs[name].count == 1]
