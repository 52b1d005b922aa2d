"""The lines of a training run, worded as Caffe's solver words them, so that tools that read such logs work.

Source: Caffe's solver.cpp (Step, Test, Solve) and solvers/sgd_solver.cpp (ApplyUpdate). Numbers have 6 digits, as there.
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
    """Writes the lines to the logger "minicaffe.solver"; keeps the time since the last one, for the speed."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, iteration: int) -> None:
        """Count iterations and time from here."""
        self._last, self._began = iteration, time.perf_counter()

    def train(self, iteration: int, display: int, loss: float, net: Net) -> None:
        """The speed since the line before, the smoothed loss, and each output of the train net."""
        seconds = time.perf_counter() - self._began
        rate = (iteration - self._last) / (seconds or 1)
        logger.info("Iteration %d (%g iter/s, %gs/%d iters), loss = %g", iteration, rate, seconds, display, loss)
        self.start(iteration)
        net_outputs("Train", net, {name: net.blobs[name].data for name in net.outputs})


def net_outputs(which: str, net: Net, outputs: Mapping[str, NDArray[np.floating]]) -> None:
    """`    Test net output #0: loss = 0.5 (* 1 = 0.5 loss)`, a line for each number of a net's outputs."""
    number = 0
    for name, values in outputs.items():
        for value in np.ravel(values):
            logger.info("    %s net output #%d: %s", which, number, scored(name, float(value), net.blob_loss_weights[name]))
            number += 1


def scored(name: str, value: float, weight: float) -> str:
    """`loss = 0.5 (* 1 = 0.5 loss)`; without the brackets where the output's loss weight is 0."""
    return f"{name} = {value:g}" + (f" (* {weight:g} = {weight * value:g} loss)" if weight else "")
