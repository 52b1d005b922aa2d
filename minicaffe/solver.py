"""SGD with momentum and weight decay: Caffe's Solver, and pycaffe's surface of it.

    an iteration: gradients of iter_size forward-backward passes summed -> clipped -> divided by iter_size
                  -> + weight_decay * decay_mult * w (L2) or sign(w) (L1)
                  -> history = momentum * history + lr * lr_mult * gradient;  w -= history

Source: Caffe's solver.cpp and solvers/sgd_solver.cpp.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import solver_nets
from .errors import SolverError, WeightsError
from .lr_policy import check_policy, current_step, learning_rate
from .net import Net
from .proto import caffe_pb2
from .prototxt import read_solver
from .rng import set_random_seed
from .settings import DetectionSettings, current
from .solver_log import SolverLog, net_outputs
from .solver_state import TrainingState, read_state, write_state
from .target_scaling import folded, unfold
from .upgrade import upgrade_solver

logger = logging.getLogger(__name__)

SolverFile = str | os.PathLike[str] | caffe_pb2.SolverParameter
Arrays = dict[str, NDArray[Any]]

PART = 1 << 15
"""Numbers of a blob that are updated at a time."""


@dataclass(frozen=True)
class Progress:
    """One finished iteration. loss: the smoothed one (average_loss); rate: iterations a second since step or solve began."""

    iteration: int
    loss: float
    last_loss: float
    lr: float
    rate: float


class SGDSolver:
    """Trains a net as a solver prototxt (or a SolverParameter) says.

    net, test_nets, iter, lr, param: as in pycaffe. settings: the detection settings (default: the current ones), which say
    whether box targets are normalised, and so what a snapshot folds into the box layers. seed: in place of the solver's
    random_seed. Each `display` iterations, lines like Caffe's go to the logger "minicaffe.solver".
    Raises SolverError for what the solver lacks, and for a loss that is no finite number (before the update).
    """

    def __init__(self, solver: SolverFile, *, settings: DetectionSettings | None = None, seed: int | None = None) -> None:
        given = isinstance(solver, caffe_pb2.SolverParameter)
        self.param = upgrade_solver(solver) if isinstance(solver, caffe_pb2.SolverParameter) else read_solver(solver)
        self.folder = Path() if given else Path(os.fspath(solver)).parent  # type: ignore[arg-type]
        self.settings = settings or current()
        self.iter = 0
        check_policy(self.param)
        _check(self.param)
        if seed is not None or self.param.random_seed >= 0:
            set_random_seed(self.param.random_seed if seed is None else seed)
        self.net: Net = solver_nets.train_net(self.param, self.folder)
        for names in self.param.weights:
            for name in names.split(","):
                self.net.copy_from(solver_nets.found(name.strip(), self.folder))
        self.test_nets: list[Net] = solver_nets.test_nets(self.param, self.folder)
        self.history = [np.zeros(blob.shape, blob.dtype) for blob in self.net.learnable_params]
        self._losses: deque[float] = deque(maxlen=self.param.average_loss)
        self._stop_at = self.param.max_iter
        self._callbacks: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._progress: list[Callable[[Progress], None]] = []
        self._log = SolverLog()

    # Running.

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return learning_rate(self.param, self.iter, self._stop_at)

    def solve(self, resume_file: str | os.PathLike[str] | None = None, *, iterations: int | None = None) -> None:
        """Train to max_iter (or `iterations` more, where that is given), with tests, snapshots and a last snapshot."""
        if resume_file is not None:
            self.restore(resume_file)
        if iterations is None and not self.param.HasField("max_iter"):
            raise SolverError("the solver has no max_iter: say how many iterations (solve(iterations=...), train --iterations)")
        self._stop_at = self.param.max_iter if iterations is None else self.iter + iterations
        if self.param.snapshot or self.param.snapshot_after_train:
            self._make_snapshot_folder()
        logger.info("Solving %s", self.net.name)
        logger.info("Learning Rate Policy: %s", self.param.lr_policy)
        self.step(max(self._stop_at - self.iter, 0))
        if self.param.snapshot_after_train and not (self.param.snapshot and self.iter % self.param.snapshot == 0):
            self.snapshot()
        if self._due(self.param.display):
            self.net.forward()
            self._losses.append(sum(self._loss_parts().values()))
            logger.info("Iteration %d, loss = %g", self.iter, self.smoothed_loss)
        if self._due(self.param.test_interval):
            self.test_all()
        logger.info("Optimization Done.")

    def step(self, iterations: int) -> None:
        """Train for some iterations more."""
        self._losses.clear()
        self._log.start(self.iter)
        start, began = self.iter, time.perf_counter()
        while self.iter < start + iterations:
            if self._due(self.param.test_interval) and (self.iter or self.param.test_initialization):
                self.test_all()
            lr = self.lr
            self._iteration()
            rate = (self.iter - start) / max(time.perf_counter() - began, 1e-9)
            for report in self._progress:
                report(Progress(self.iter, self.smoothed_loss, self._losses[-1], lr, rate))
            if self._due(self.param.snapshot):
                self.snapshot()

    def _iteration(self) -> None:
        self.net.clear_param_diffs()
        for on_start, _ in self._callbacks:
            on_start()
        loss = sum(self.net.forward_backward() for _ in range(self.param.iter_size)) / self.param.iter_size
        self._losses.append(loss)
        if not math.isfinite(loss):
            raise SolverError(f"iteration {self.iter}: the loss is {loss} ({self._blamed()}); the weights were not updated")
        if self._due(self.param.display):
            self._log.train(self.iter, self.param.display, self.smoothed_loss, self.net)
        for _, on_gradients_ready in self._callbacks:
            on_gradients_ready()
        self.apply_update()

    def apply_update(self) -> None:
        """Turn the gradients in the net's diffs into an update of its weights; counts as one iteration."""
        param, blobs = self.param, self.net.learnable_params
        if param.clip_gradients >= 0:
            clip([blob.diff for blob in blobs], param.clip_gradients)
        rate = self.lr
        if self._due(param.display):
            logger.info("Iteration %d, lr = %g", self.iter, rate)
        multipliers = zip(blobs, self.history, self.net.params_lr, self.net.params_weight_decay, strict=True)
        for blob, history, lr_mult, decay_mult in multipliers:
            for data, diff, past in parts(blob.data, blob.diff, history):
                if param.iter_size > 1:
                    np.divide(diff, param.iter_size, out=diff)
                regularise(data, diff, param.weight_decay * decay_mult, param.regularization_type)
                momentum_update(data, diff, past, rate * lr_mult, param.momentum)
        self.iter += 1

    # The loss.

    @property
    def smoothed_loss(self) -> float:
        """The mean loss of the last average_loss iterations."""
        return sum(self._losses) / len(self._losses) if self._losses else math.nan

    def _loss_parts(self) -> dict[str, float]:
        """What each loss blob of the last forward pass adds to the loss."""
        weights = self.net.blob_loss_weights
        return {name: weight * float(self.net.blobs[name].data.sum()) for name, weight in weights.items() if weight}

    def _blamed(self) -> str:
        return ", ".join(f"{name} = {value:g}" for name, value in self._loss_parts().items())

    # Testing.

    def test_all(self) -> list[Arrays]:
        """Run every test net with the current weights; the mean of each output over test_iter batches."""
        return [self.test(i) for i in range(len(self.test_nets))]

    def test(self, index: int) -> Arrays:
        """Run one test net."""
        net, batches = self.test_nets[index], self.param.test_iter[index]
        logger.info("Iteration %d, Testing net (#%d)", self.iter, index)
        net.share_with(self.net)
        means = {name: np.zeros(0) for name in net.outputs}
        for _ in range(batches):
            for name, array in net.forward().items():
                means[name] = array / batches if not means[name].size else means[name] + array / batches
        net_outputs("Test", net, means)
        return means

    # Snapshots.

    def snapshot(self) -> Path:
        """Write <snapshot_prefix>_iter_<iter>.caffemodel (box targets folded in) and .solverstate; the former's path."""
        self._make_snapshot_folder()
        suffix = ".h5" if self.param.snapshot_format == caffe_pb2.SolverParameter.HDF5 else ""
        base = f"{self.param.snapshot_prefix}_iter_{self.iter}"
        model = Path(f"{base}.caffemodel{suffix}")
        self.save(model)
        state = TrainingState(self.iter, str(model), current_step(self.param, self.iter), self.history)
        write_state(f"{base}.solverstate{suffix}", state)
        logger.info("Snapshot written to %s", model)
        return model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights, with the box targets' means and deviations folded in, as the test net wants them."""
        with folded(self.net, self.settings):
            self.net.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on where a .solverstate (or .solverstate.h5) stopped: its weights, momentum and iteration."""
        state = read_state(path)
        shapes = [array.shape for array in self.history]
        if len(state.history) != len(shapes):
            raise WeightsError(f"{path}: {len(state.history)} history blobs for a net of {len(shapes)} learnable blobs")
        for i, (array, shape) in enumerate(zip(state.history, shapes, strict=True)):
            if array.size != math.prod(shape):
                raise WeightsError(f"{path}: history blob {i} has shape {array.shape}, but the net's blob has {shape}")
        if state.learned_net:
            self.net.copy_from(solver_nets.found(_beside(state.learned_net, path), self.folder))
            unfold(self.net, self.settings)
        for history, array in zip(self.history, state.history, strict=True):
            history[...] = array.reshape(history.shape)
        self.iter = state.iteration

    def _make_snapshot_folder(self) -> None:
        folder = Path(self.param.snapshot_prefix).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SolverError(f"{folder}: cannot make the folder of snapshot_prefix: {error.strerror}") from error

    # Others.

    def share_weights(self, net: Net) -> None:
        """Train on net's weights (pycaffe's name)."""
        self.net.share_with(net)

    def add_callback(self, on_start: Callable[[], None], on_gradients_ready: Callable[[], None]) -> None:
        """Call on_start before each iteration's first pass, and on_gradients_ready before its update (pycaffe's)."""
        self._callbacks.append((on_start, on_gradients_ready))

    def on_progress(self, report: Callable[[Progress], None]) -> None:
        """Call report(Progress) after each iteration: what a progress bar draws."""
        self._progress.append(report)

    def _due(self, interval: int) -> bool:
        return interval > 0 and self.iter % interval == 0


def clip(diffs: list[NDArray[Any]], limit: float) -> float:
    """Scale gradients in place so that their common L2 norm is at most limit; returns the norm they had."""
    norm = math.sqrt(sum(float(np.vdot(diff, diff)) for diff in diffs))
    if norm > limit:
        for diff in diffs:
            np.multiply(diff, limit / norm, out=diff)
    return norm


def parts(*arrays: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Views of contiguous arrays of one size, PART numbers of each at a time: several passes over them stay in cache."""
    for start in range(0, arrays[0].size, PART):
        yield tuple(array.reshape(-1)[start : start + PART] for array in arrays)


def regularise(data: NDArray[Any], diff: NDArray[Any], decay: float, kind: str) -> None:
    """Add the weight decay's gradient to diff: decay * data (L2), or decay * sign(data) (L1)."""
    if decay:
        diff += decay * (data if kind == "L2" else np.sign(data))


def momentum_update(data: NDArray[Any], diff: NDArray[Any], history: NDArray[Any], rate: float, momentum: float) -> None:
    """history = momentum * history + rate * diff; diff = history; data -= history. All in place, all of one shape."""
    history *= momentum
    diff *= rate
    history += diff
    diff[...] = history
    data -= diff


def get_solver(solver: SolverFile, *, settings: DetectionSettings | None = None, seed: int | None = None) -> SGDSolver:
    """The solver that the prototxt's type asks for. Raises SolverError for types other than SGD."""
    return SGDSolver(solver, settings=settings, seed=seed)


def _check(param: caffe_pb2.SolverParameter) -> None:
    if param.type != "SGD":
        raise SolverError(f'solver type "{param.type}" is not built in; there is SGD')
    for name in ("iter_size", "average_loss"):
        if getattr(param, name) < 1:
            raise SolverError(f"{name} must be > 0, got {getattr(param, name)}")
    if any(count < 1 for count in param.test_iter):
        raise SolverError(f"every test_iter must be > 0, got {list(param.test_iter)}")
    if param.regularization_type not in ("L1", "L2"):
        raise SolverError(f'regularization_type must be L1 or L2, got "{param.regularization_type}"')


def _beside(name: str, state: str | os.PathLike[str]) -> str:
    """The weights file that a state names: there, or of that name in the state's own folder."""
    neighbour = Path(state).parent / Path(name).name
    return str(neighbour) if not Path(name).is_file() and neighbour.is_file() else name
