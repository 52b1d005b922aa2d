"""The learning rate policies. Source: Caffe's sgd_solver.cpp (GetLearningRate), and that of the forks in brackets.

fixed      base_lr
step       base_lr * gamma^floor(iter / stepsize)
exp        base_lr * gamma^iter
inv        base_lr * (1 + gamma * iter)^-power
multistep  base_lr * gamma^(number of stepvalues reached)
poly       base_lr * (1 - iter / max_iter)^power
sigmoid    base_lr / (1 + exp(-gamma * (iter - stepsize)))
multifixed the stagelr of the first stageiter >= iter; after the last stageiter the last stagelr [YOLO for Caffe, Intel]

warmup_iter: below that iteration, whatever the policy, the rate goes in a line from warmup_start_lr to base_lr [Intel]
"""

from __future__ import annotations

import math
from typing import Any

from minicaffe.errors import SolverError
from minicaffe.proto import caffe_pb2

NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma",),
    "poly": ("power",),
    "sigmoid": ("gamma", "stepsize"),
    "multifixed": ("stagelr", "stageiter"),
}


def check_policy(param: caffe_pb2.SolverParameter) -> None:
    """Raises SolverError for an unknown policy, a missing parameter, and a base_lr that is not finite."""
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


def learning_rate(param: caffe_pb2.SolverParameter, iteration: int, max_iter: int) -> float:
    """The rate of an iteration (counted from 0); only poly uses max_iter. Raises SolverError if it is not a real number."""
    try:
        return float(_rate(param, iteration, max_iter))
    except (ArithmeticError, TypeError) as error:
        raise SolverError(f'iteration {iteration}: lr_policy "{param.lr_policy}" gives no learning rate: {error}') from error


def _rate(param: caffe_pb2.SolverParameter, iteration: int, max_iter: int) -> Any:
    """The rate: a float, or a complex number for a fractional power of a negative number."""
    base, gamma, power = float(param.base_lr), float(param.gamma), float(param.power)
    if iteration < param.warmup_iter:
        return (iteration * base + (param.warmup_iter - iteration) * param.warmup_start_lr) / param.warmup_iter
    if param.lr_policy == "multifixed":
        stages = zip(param.stageiter, param.stagelr, strict=True)
        return next((rate for end, rate in stages if iteration <= end), param.stagelr[-1])
    if param.lr_policy in ("step", "multistep"):
        return base * gamma ** current_step(param, iteration)
    if param.lr_policy == "exp":
        return base * gamma**iteration
    if param.lr_policy == "inv":
        return base * (1 + gamma * iteration) ** -power
    if param.lr_policy == "poly":
        return base * max(0.0, 1 - iteration / max(max_iter, 1)) ** power  # beyond max_iter: 0, not a complex power
    if param.lr_policy == "sigmoid":
        return base / (1 + math.exp(min(-gamma * (iteration - param.stepsize), 700.0)))  # exp overflows above 709
    return base


def current_step(param: caffe_pb2.SolverParameter, iteration: int) -> int:
    """The number of multiplications by gamma in step and multistep; 0 for other policies."""
    if param.lr_policy == "step":
        return iteration // param.stepsize
    if param.lr_policy == "multistep":
        # Caffe counts up one stepvalue a call; equal if they ascend.
        return sum(iteration >= value for value in param.stepvalue)
    return 0
