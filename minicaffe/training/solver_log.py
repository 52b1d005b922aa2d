"""The log lines of a training, in the words and with the 6 digits of Caffe's solver, for tools that read such logs.

Source: Caffe's solver.cpp (Step, Test, Solve) and solvers/sgd_solver.cpp (ApplyUpdate).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from minicaffe.net import Net

logger = logging.getLogger("minicaffe.solver")


class SolverLog:
    """Writes lines to the logger "minicaffe.solver", with the speed since the previous line, while the solver steps."""

    def __init__(self) -> None:
        self._now, self._spent = 0, 0.0
        self._start(0)

    def begin(self, iteration: int) -> None:
        """A step begins, at this iteration: where the last one ended, or elsewhere in a restored training."""
        if iteration != self._now:
            self._start(iteration)
        self._began = time.perf_counter() - self._spent

    def end(self, iteration: int) -> None:
        """It ends here; what the caller does now takes no time of the training's."""
        self._now, self._spent = iteration, time.perf_counter() - self._began

    def _start(self, iteration: int) -> None:
        """Count iterations and time from here."""
        self._last, self._spent, self._began = iteration, 0.0, time.perf_counter()

    def train(self, iteration: int, display: int, loss: float, net: Net) -> None:
        """Log the speed since the previous line, the smoothed loss, and each output of the train net."""
        seconds = time.perf_counter() - self._began
        rate = (iteration - self._last) / (seconds or 1)  # a clock of coarse steps may show 0
        logger.info("Iteration %d (%g iter/s, %gs/%d iters), loss = %g", iteration, rate, seconds, display, loss)
        self._start(iteration)
        net_outputs("Train", net, {name: net.blobs[name].data for name in net.outputs})


def net_outputs(which: str, net: Net, outputs: Mapping[str, NDArray[np.floating]]) -> None:
    """Log a line for each number of a net's outputs: `    Test net output #0: loss = 0.5 (* 1 = 0.5 loss)`."""
    number = 0
    for name, values in outputs.items():
        for value in np.ravel(values):  # as in Caffe, each element has a number
            logger.info("    %s net output #%d: %s", which, number, scored(name, float(value), net.blob_loss_weights[name]))
            number += 1


def scored(name: str, value: float, weight: float) -> str:
    """`loss = 0.5 (* 1 = 0.5 loss)`; without the brackets for a loss weight of 0."""
    return f"{name} = {value:g}" + (f" (* {weight:g} = {weight * value:g} loss)" if weight else "")
