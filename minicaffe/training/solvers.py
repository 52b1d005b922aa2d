"""Caffe's solvers besides SGD, and the choice by the prototxt's type. Their rules are in updates.py.

Source: Caffe's sgd_solvers.hpp and solver_factory.hpp.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from minicaffe.cuda.updates import Rule
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import SolverError
from minicaffe.formats.prototxt import read_solver
from minicaffe.formats.upgrade import upgrade_solver
from minicaffe.proto import caffe_pb2

from . import updates
from .solver import EditNet, SGDSolver, SolverFile

Array = NDArray[Any]


class NesterovSolver(SGDSolver):
    """Nesterov's accelerated gradient.

    Notes
    -----
    Field of the solver prototxt: momentum.
    """

    type = "Nesterov"

    def gradient_to_step(self, diff: Array, history: Sequence[Array], rate: float) -> None:
        updates.nesterov(diff, history[0], rate, self.param.momentum)

    def kernel(self, rate: float) -> Rule:
        return Rule("Nesterov", rate, keep=self.param.momentum)


class AdaGradSolver(SGDSolver):
    """AdaGrad (Duchi et al., 2011).

    Raises
    ------
    SolverError
        The solver prototxt has a momentum.

    Notes
    -----
    Field of the solver prototxt: delta.
    """

    type = "AdaGrad"

    def check_rule(self) -> None:
        _no_momentum(self)

    def gradient_to_step(self, diff: Array, history: Sequence[Array], rate: float) -> None:
        updates.adagrad(diff, history[0], rate, self.param.delta)

    def kernel(self, rate: float) -> Rule:
        return Rule("AdaGrad", rate, delta=self.param.delta)


class RMSPropSolver(SGDSolver):
    """RMSProp (Tieleman and Hinton, 2012).

    Raises
    ------
    SolverError
        The solver prototxt has a momentum, or rms_decay is out of range.

    Notes
    -----
    Fields of the solver prototxt: rms_decay in [0, 1), and delta.
    """

    type = "RMSProp"

    def check_rule(self) -> None:
        _no_momentum(self)
        if not 0 <= self.param.rms_decay < 1:
            raise SolverError(f"rms_decay must be in [0, 1), got {self.param.rms_decay:g}")

    def gradient_to_step(self, diff: Array, history: Sequence[Array], rate: float) -> None:
        updates.rmsprop(diff, history[0], rate, self.param.rms_decay, self.param.delta)

    def kernel(self, rate: float) -> Rule:
        return Rule("RMSProp", rate, keep=self.param.rms_decay, delta=self.param.delta)


class AdaDeltaSolver(SGDSolver):
    """AdaDelta (Zeiler, 2012).

    Notes
    -----
    Fields of the solver prototxt: momentum and delta.
    """

    type = "AdaDelta"
    histories = 2

    def gradient_to_step(self, diff: Array, history: Sequence[Array], rate: float) -> None:
        updates.adadelta(diff, history[0], history[1], rate, self.param.momentum, self.param.delta)

    def kernel(self, rate: float) -> Rule:
        return Rule("AdaDelta", rate, keep=self.param.momentum, delta=self.param.delta)


class AdamSolver(SGDSolver):
    """Adam (Kingma and Ba, 2015).

    Raises
    ------
    SolverError
        momentum or momentum2 is out of range.

    Notes
    -----
    Fields of the solver prototxt: momentum and momentum2 in [0, 1), and delta.
    """

    type = "Adam"
    histories = 2

    def check_rule(self) -> None:
        for name in ("momentum", "momentum2"):
            if not 0 <= getattr(self.param, name) < 1:
                raise SolverError(f"{name} must be in [0, 1), got {getattr(self.param, name):g}")

    def gradient_to_step(self, diff: Array, history: Sequence[Array], rate: float) -> None:
        param = self.param
        updates.adam(diff, history[0], history[1], self._corrected(rate), param.momentum, param.momentum2, param.delta)

    def kernel(self, rate: float) -> Rule:
        param = self.param
        return Rule("Adam", self._corrected(rate), keep=param.momentum, keep2=param.momentum2, delta=param.delta)

    def _corrected(self, rate: float) -> float:
        # Caffe's t counts from 1.
        return rate * updates.adam_correction(self.iter + 1, self.param.momentum, self.param.momentum2)


SOLVERS = {kind.type: kind for kind in (SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)}
"""The solvers by type."""


def get_solver(
    solver: SolverFile,
    *,
    settings: DetectionSettings | None = None,
    fork: str = "",
    seed: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    strict: bool | None = None,
    edit_net: EditNet | None = None,
) -> SGDSolver:
    """Return a solver of the prototxt's type.

    Parameters
    ----------
    solver : str or path or SolverParameter
        The solver prototxt, or its content.
    settings : DetectionSettings, optional
        As for `SGDSolver`.
    fork : str, optional
        As for `SGDSolver`.
    seed : int, optional
        As for `SGDSolver`.
    folder : str or path, optional
        As for `SGDSolver`.
    strict : bool, optional
        As for `SGDSolver`.
    edit_net : callable, optional
        As for `SGDSolver`.

    Returns
    -------
    SGDSolver
        The solver, of a subclass for types other than SGD.

    Raises
    ------
    SolverError
        The type is unknown, or the solver is incomplete.

    Notes
    -----
    Source: Caffe's sgd_solvers.hpp and solver_factory.hpp.
    """
    if isinstance(solver, caffe_pb2.SolverParameter):
        param = upgrade_solver(solver)
    else:
        param, folder = read_solver(solver, strict=strict), Path(solver).parent
    if param.type not in SOLVERS:
        raise SolverError(f'unknown solver type "{param.type}": use one of {", ".join(SOLVERS)}')
    make = SOLVERS[param.type]
    return make(param, settings=settings, fork=fork, seed=seed, folder=folder, strict=strict, edit_net=edit_net)


def _no_momentum(solver: SGDSolver) -> None:
    if solver.param.momentum:
        raise SolverError(f"{solver.type} takes no momentum, got {solver.param.momentum:g}")
