"""The learning rate policies. Source: Caffe's sgd_solver.cpp (GetLearningRate), and that of the forks in brackets.

fixed      base_lr
step       base_lr * gamma^floor(iter / stepsize)
exp        base_lr * gamma^iter
inv        base_lr * (1 + gamma * iter)^-power
multistep  base_lr * gamma^(number of stepvalues reached)
poly       base_lr * (1 - iter / max_iter)^power
sigmoid    base_lr / (1 + exp(-gamma * (iter - stepsize)))
multifixed the stagelr of the first stageiter >= iter; after the last stageiter the last stagelr [YOLO for Caffe, Intel]
plateau    base_lr * gamma^(number of plateaus so far): see Plateau [SSD]

warmup_iter: below that iteration, whatever the policy, the rate goes in a line from warmup_start_lr to base_lr [Intel]
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.errors import SolverError
from minicaffe.proto import caffe_pb2

logger = logging.getLogger("minicaffe.solver")

NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma",),
    "poly": ("power",),
    "sigmoid": ("gamma", "stepsize"),
    "multifixed": ("stagelr", "stageiter"),
    "plateau": ("gamma", "plateau_winsize"),
}


def check_policy(param: caffe_pb2.SolverParameter) -> None:
    """Raise SolverError for an unknown policy, and for missing or invalid parameters."""
    policy = param.lr_policy
    if policy not in NEEDS:
        raise SolverError(f'unknown lr_policy "{policy}": use one of {", ".join(NEEDS)}')
    present = {descriptor.name for descriptor, _ in param.ListFields()}
    base = () if policy == "multifixed" and not param.warmup_iter else ("base_lr",)
    if missing := [name for name in (*base, *NEEDS[policy]) if name not in present]:
        raise SolverError(f'lr_policy "{policy}" needs {" and ".join(missing)}, which the solver lacks')
    for name in ("base_lr", "warmup_start_lr"):
        if not math.isfinite(getattr(param, name)):
            raise SolverError(f"{name} must be a finite number, got {getattr(param, name):g}")
    if not all(map(math.isfinite, param.stagelr)):
        raise SolverError(f"every stagelr must be a finite number, got {list(param.stagelr)}")
    if policy == "multifixed" and len(param.stagelr) != len(param.stageiter):
        raise SolverError(
            f"each stagelr needs its stageiter, got {len(param.stagelr)} stagelr and {len(param.stageiter)} stageiter"
        )
    if param.warmup_iter < 0:
        raise SolverError(f"warmup_iter must be >= 0, got {param.warmup_iter}")
    if policy == "step" and param.stepsize <= 0:
        raise SolverError(f"stepsize must be > 0, got {param.stepsize}")
    if policy == "plateau" and min(param.plateau_winsize) <= 0:
        raise SolverError(f"every plateau_winsize must be > 0, got {list(param.plateau_winsize)}")


@dataclass
class Plateau:
    """The progress of lr_policy "plateau", under SolverState's names.

    A plateau is plateau_winsize[current_step] iterations in which neither the smoothed loss fell below minimum_loss nor the
    rate changed. Each plateau increments current_step, until all windows are used.
    """

    current_step: int = 0
    minimum_loss: float = caffe_pb2.SolverState().minimum_loss
    iter_last_event: int = 0

    def observe(self, param: caffe_pb2.SolverParameter, iteration: int, loss: float) -> None:
        """Update the progress with an iteration's smoothed loss, before its update. Warm-up iterations do not count."""
        if param.lr_policy != "plateau" or iteration < param.warmup_iter:
            return
        loss = float(np.float32(loss))  # a state stores float32: a resumed training must compare the same numbers
        if loss < self.minimum_loss:
            self.minimum_loss, self.iter_last_event = loss, iteration
        windows = param.plateau_winsize[self.current_step :]
        if windows and iteration >= self.iter_last_event + windows[0]:
            self.current_step, self.iter_last_event = self.current_step + 1, iteration
            logger.info("Plateau Status: Iteration %d, step = %d", iteration, self.current_step)
        if param.display > 0 and iteration % param.display == 0 and self.iter_last_event > iteration - param.display:
            logger.info("Plateau Status: Iteration %d, current minimum_loss = %g", iteration, self.minimum_loss)


def learning_rate(param: caffe_pb2.SolverParameter, iteration: int, max_iter: int, plateaus: int = 0) -> float:
    """Return the learning rate of an iteration, counted from 0. Only poly uses max_iter, only plateau uses plateaus.

    Raises SolverError if it is not a real number.
    """
    try:
        return float(_rate(param, iteration, max_iter, plateaus))
    except (ArithmeticError, TypeError) as error:
        raise SolverError(f'iteration {iteration}: lr_policy "{param.lr_policy}" gives no learning rate: {error}') from error


def _rate(param: caffe_pb2.SolverParameter, iteration: int, max_iter: int, plateaus: int) -> Any:
    """Return the rate: a float, or a complex number for a fractional power of a negative number."""
    base, gamma, power = float(param.base_lr), float(param.gamma), float(param.power)
    if iteration < param.warmup_iter:
        return (iteration * base + (param.warmup_iter - iteration) * param.warmup_start_lr) / param.warmup_iter
    if param.lr_policy == "multifixed":
        stages = zip(param.stageiter, param.stagelr, strict=True)
        return next((rate for end, rate in stages if iteration <= end), param.stagelr[-1])
    if param.lr_policy in ("step", "multistep", "plateau"):
        return base * gamma ** current_step(param, iteration, plateaus)
    if param.lr_policy == "exp":
        return base * gamma**iteration
    if param.lr_policy == "inv":
        return base * (1 + gamma * iteration) ** -power
    if param.lr_policy == "poly":
        return base * max(0.0, 1 - iteration / max(max_iter, 1)) ** power  # beyond max_iter: 0, not a complex power
    if param.lr_policy == "sigmoid":
        return base / (1 + math.exp(min(-gamma * (iteration - param.stepsize), 700.0)))  # exp overflows above 709
    return base


def current_step(param: caffe_pb2.SolverParameter, iteration: int, plateaus: int = 0) -> int:
    """Return the number of multiplications by gamma in step, multistep and plateau; 0 for other policies."""
    if param.lr_policy == "plateau":
        return plateaus
    if param.lr_policy == "step":
        return iteration // param.stepsize
    if param.lr_policy == "multistep":
        # Caffe advances by one stepvalue per call, which is equal if the values ascend.
        return sum(iteration >= value for value in param.stepvalue)
    return 0
