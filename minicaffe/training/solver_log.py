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
    """Writes lines to the logger "minicaffe.solver", with the speed since the previous line."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, iteration: int) -> None:
        """Count iterations and time from here."""
        self._last, self._began = iteration, time.perf_counter()

    def train(self, iteration: int, display: int, loss: float, net: Net) -> None:
        """Log the speed since the previous line, the smoothed loss, and each output of the train net."""
        seconds = time.perf_counter() - self._began
        rate = (iteration - self._last) / (seconds or 1)  # a clock of coarse steps may show 0
        logger.info("Iteration %d (%g iter/s, %gs/%d iters), loss = %g", iteration, rate, seconds, display, loss)
        self.start(iteration)
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
