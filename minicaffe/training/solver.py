"""SGD with momentum and weight decay: Caffe's Solver with pycaffe's interface. solvers.py has the other update rules.

    an iteration: gradients of iter_size forward-backward passes summed -> clipped -> divided by iter_size
                  -> + weight_decay * decay_mult * w (L2) or sign(w) (L1)
                  -> the update rule (updates.py), with lr * lr_mult

Source: Caffe's solver.cpp and solvers/sgd_solver.cpp.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from minicaffe.blob import Arrays, Blob
from minicaffe.cuda.updates import Rule
from minicaffe.data.settings import DetectionSettings, changed_values
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import DataError, SolverError, on_one_line, os_errors_as, pasted, shortened
from minicaffe.files import granted, unlinked
from minicaffe.formats.prototxt import NetFile, read_solver
from minicaffe.formats.upgrade import upgrade_solver
from minicaffe.hooks import debug_info
from minicaffe.mode import Phase
from minicaffe.net import Net
from minicaffe.net_arguments import AnyNet, net_file_of
from minicaffe.proto import caffe_pb2
from minicaffe.rng import set_random_seed

from . import snapshots, solver_nets, updates
from .epochs import epoch_of
from .exchange import Exchange
from .lr_policy import Plateau, check_policy, learning_rate
from .record import Record
from .running_state import (
    SETTINGS,
    SNAPSHOTS,
    VALIDATION,
    LastIteration,
    State,
    add_note,
    encoded_state,
    misfits,
    restore_running_state,
    running_state,
)
from .signals import Action, Request, stronger
from .solver_log import SolverLog, net_outputs
from .target_scaling import folded

if TYPE_CHECKING:
    from .validation import Validation

logger = logging.getLogger("minicaffe.solver")

SolverFile = str | os.PathLike[str] | caffe_pb2.SolverParameter
EditNet = Callable[[NetFile, Phase], NetFile]
"""A change of a net file before a net of this phase is built from it."""


@dataclass(frozen=True)
class Progress:
    """The progress of a training after an update.

    Attributes
    ----------
    iteration : int
        The number of updates.
    loss : float
        The smoothed loss, over average_loss iterations.
    last_loss : float
        The loss of the last iteration.
    lr : float
        The learning rate of the next update, as in the log's line of this iteration; at the end, of the last update.
        With lr_policy "plateau" the next loss may still lower it.
    rate : float
        Iterations per second since step or solve began, from the second iteration on without the first, which compiles
        and fills queues.
    """

    iteration: int
    loss: float
    last_loss: float
    lr: float
    rate: float


class SGDSolver:
    """A solver that trains a net by SGD with momentum and weight decay.

    Every `display` iterations it logs lines like Caffe's to the logger "minicaffe.solver".

    Parameters
    ----------
    solver : str or path or SolverParameter
        The solver prototxt, or its content.
    settings : DetectionSettings, optional
        The detection settings of its nets. Default: the current ones.
        They decide if box targets are normalised, and so the values that a snapshot folds into the box layers.
    fork : str, optional
        As for `Net`, for its nets.
    seed : int, optional
        Overrides the solver's random_seed.
    folder : str or path, optional
        The folder of the files that a SolverParameter names. Default: the working directory.
    strict : bool, optional
        As for `Net`, for its nets and for the solver prototxt.
    edit_net : callable, optional
        Called with the NetFile and the phase of each of its nets. The net is built from the NetFile that it returns.

    Attributes
    ----------
    net : Net
        The net that is trained.
    test_nets : list of Net
        The test nets.
    iter : int
        The number of updates so far.
    param : SolverParameter
        The solver prototxt's content.
    settings : DetectionSettings
        The detection settings of its nets.
    folder : Path
        The folder of the files that the solver names.
    stopped : bool
        True if a request ended the last step or test.
    exchange : Exchange
        The communication with other ranks that train the same net (minicaffe.mpi).
    keep : int or None
        The number of snapshots to keep. Older ones that this training wrote are removed. Default: None, all.
    validation : Validation or None
        The validation that runs while the solver trains.
    resume_advice : str
        How to resume, for the message of an error. Default: "", the command `train` with the snapshot.

    Raises
    ------
    SolverError
        The solver is incomplete. In training: the loss is not finite; the weights are not updated.

    Notes
    -----
    An iteration sums the gradients of iter_size passes, clips them, divides them by iter_size, and adds the weight decay.
    The update rule then applies lr * lr_mult.
    Source: Caffe's solver.cpp and solvers/sgd_solver.cpp. The interface is pycaffe's.
    """

    type: ClassVar[str] = "SGD"
    """The update rule's name in a solver prototxt."""
    histories: ClassVar[int] = 1
    """The number of arrays that the rule keeps per learnable blob."""

    def __init__(
        self,
        solver: SolverFile,
        *,
        settings: DetectionSettings | None = None,
        fork: str = "",
        seed: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        strict: bool | None = None,
        edit_net: EditNet | None = None,
    ) -> None:
        if isinstance(solver, caffe_pb2.SolverParameter):
            self.param, self.folder = upgrade_solver(solver), Path(folder or Path())
        else:
            self.param, self.folder = read_solver(solver, strict=strict), Path(solver).parent
        self.iter = 0
        check_policy(self.param)
        _check(self.param)
        self.check_rule()
        if seed is not None or self.param.random_seed >= 0:
            set_random_seed(self.param.random_seed if seed is None else seed)
        self._edit_net, self._net_options = edit_net, {"strict": strict, "fork": fork}
        make = self.make_net
        self.net: Net = solver_nets.train_net(self.param, self.folder, partial(make, settings=settings))
        self.settings = self.net.settings
        for names in self.param.weights:
            for name in names.split(","):  # as in caffe train --weights
                self.net.copy_from(solver_nets.found(name.strip(), self.folder))
        self.test_nets: list[Net] = solver_nets.test_nets(self.param, self.folder, partial(make, settings=self.settings))
        self.plateau = Plateau()
        self._losses: deque[float] = deque(maxlen=self.param.average_loss)
        self._stop_at = self.param.max_iter
        self._callbacks: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._progress: list[Callable[[Progress], None]] = []
        self._tested: list[Callable[[int, Arrays], None]] = []
        self._log = SolverLog()
        self._request: Request = lambda: Action.NONE
        self.exchange = Exchange()
        self.stopped = False
        self._resumed = False
        self._last = LastIteration(self.net)
        self._is_updating = False
        self._saved_iter = 0
        self.keep: int | None = None
        self.validation: Validation | None = None
        self.resume_advice = ""
        self._snapshots: list[int] = []

    def make_net(self, net: AnyNet, phase: Phase, **options: Any) -> Net:
        """Return a net with the solver's options, changed by edit_net.

        Parameters
        ----------
        net : str or path or NetFile or NetParameter
            The net.
        phase : Phase
            Its phase.
        **options
            Further arguments of `Net`.

        Returns
        -------
        Net
            The net.
        """
        file = self._edit_net(net_file_of(net), phase) if self._edit_net else net
        return Net(file, phase, **{**self._net_options, **options})

    @cached_property
    def history_blobs(self) -> list[Blob]:
        """The update rule's memory of each learnable blob, made at the first use, because loading weights may change blobs."""
        # All first arrays, then all second ones, as Caffe stores them.
        return [Blob(blob.shape, blob.dtype) for blob in self.net.learnable_params * self.histories]

    @cached_property
    def record(self) -> Record:
        """The facts of the training from the first use on: losses, rates and tests. Use it after making a `Validation`."""
        return Record(self)

    # The update rule, which other solvers override.

    def check_rule(self) -> None:
        """Raise SolverError for parameters that the rule does not support."""

    def gradient_to_step(self, diff: NDArray[Any], history: Sequence[NDArray[Any]], rate: float) -> None:
        """Turn the gradient into the step to subtract from the weights, and update the histories.

        Parameters
        ----------
        diff : ndarray
            The gradient, overwritten with the step.
        history : sequence of ndarray
            The rule's histories, of diff's shape, overwritten.
        rate : float
            The learning rate.
        """
        updates.sgd(diff, history[0], rate, self.param.momentum)

    def kernel(self, rate: float) -> Rule:
        """Return gradient_to_step as a rule of cuda/updates.cu.

        A class that overrides only gradient_to_step updates on the host in GPU mode too.

        Parameters
        ----------
        rate : float
            The learning rate.

        Returns
        -------
        Rule
            The rule with its numbers.
        """
        return Rule("SGD", rate, keep=self.param.momentum)

    @property
    def history(self) -> list[NDArray[Any]]:
        """The update rule's histories, as writable arrays."""
        return [blob.data for blob in self.history_blobs]

    # Running.

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return learning_rate(self.param, self.iter, self.param.max_iter or self._stop_at, self.plateau.current_step)

    def solve(self, resume_file: str | os.PathLike[str] | None = None, *, iterations: int | None = None) -> None:
        """Train to max_iter, with tests, snapshots and a final snapshot.

        Parameters
        ----------
        resume_file : str or path, optional
            A .solverstate to `restore` first.
        iterations : int, optional
            The number of further iterations, instead of max_iter.

        Raises
        ------
        SolverError
            The loss is not finite, or the solver has no max_iter and `iterations` is missing.
        WeightsError
            The state does not fit.
        """
        if resume_file is not None:
            self.restore(resume_file)
        if iterations is None and not self.param.HasField("max_iter"):
            raise SolverError("the solver has no max_iter: give the iterations (solve(iterations=...), train --iterations)")
        self._stop_at = self.param.max_iter if iterations is None else self.iter + iterations
        if (self.param.snapshot or self.param.snapshot_after_train) and self.exchange.rank == 0:
            self._make_snapshot_folder()
        logger.info("Solving %s", self.net.name)
        logger.info("Learning Rate Policy: %s", self.param.lr_policy)
        self.step(max(self._stop_at - self.iter, 0))
        # At a multiple of snapshot, step has just written it.
        if self.param.snapshot_after_train and not (self.param.snapshot and self.iter % self.param.snapshot == 0):
            self.snapshot()
        if self.stopped:
            logger.info("Optimization stopped early.")
            return
        if self._due(self.param.display):
            self.net.forward()  # as in Caffe: the loss of the final weights, which no iteration has computed
            self._losses.append(self.exchange.mean(sum(loss_parts(self.net).values())))
            logger.info("Iteration %d, loss = %g", self.iter, self.smoothed_loss)
        if self._due(self.param.test_interval):
            self.test_all()
        logger.info("Optimization Done.")

    def step(self, iterations: int) -> None:
        """Train for further iterations, or until a stop is requested.

        Parameters
        ----------
        iterations : int
            The number of iterations.

        Raises
        ------
        SolverError
            The loss is not finite.

        Notes
        -----
        An error first writes a snapshot of the last complete iteration, and its message names the snapshot.
        No snapshot is written if the solver asks for none or other ranks train too.
        """
        if not self._resumed:  # Caffe's Step begins a new average; a restored training continues the old one
            self._losses.clear()
        self._resumed = self.stopped = False
        self.exchange.begin(self, iterations)
        self._log.begin(self.iter)
        try:
            # A stop or an error may have prevented the validation of this iteration.
            if not (self.validation and self._obey(Action.NONE)):
                self._iterate(iterations)
        except Exception as error:
            self._snapshot_after(error)
            raise
        self._log.end(self.iter)

    def _iterate(self, iterations: int) -> None:
        start, began, end = self.iter, time.perf_counter(), self.iter + iterations
        self._last = LastIteration(self.net)  # loaded weights may have changed the blobs
        while self.iter < end:
            self._last.keep(self._running_state())
            if self._due(self.param.test_interval) and (self.iter or self.param.test_initialization):
                self.test_all()
                if self.stopped:
                    break
            lr = self.lr
            self._iteration()
            now = time.perf_counter()
            rate = (self.iter - start) / max(now - began, 1e-9)
            if self.iter == end - iterations + 1:
                start, began = self.iter, now
            lr = lr if self.iter == self._stop_at else self.lr  # there is no next update
            for report in self._progress:
                report(Progress(self.iter, self.smoothed_loss, self._losses[-1], lr, rate))
            if self._obey(self._request(), snapshot=self._due(self.param.snapshot)):
                break

    def _obey(self, action: Action, snapshot: bool = False) -> bool:
        """Validate if it is due, write a snapshot if it is due or requested; return whether to stop."""
        if self.validation and action is not Action.STOP:
            action = stronger(action, self.validation.run(self._request, last=self.iter == self._stop_at))
        action = self.exchange.agree(action)  # all ranks stop after the same iteration
        if snapshot or action is Action.SNAPSHOT:
            self.snapshot()
        self.stopped = action is Action.STOP
        return self.stopped

    def _iteration(self) -> None:
        self.net.clear_param_diffs()
        for on_start, _ in self._callbacks:
            on_start()
        with debug_info(self.net, self.param.debug_info and self._due(self.param.display)):
            loss = 0.0
            for _ in range(self.param.iter_size - 1):  # the diffs add up
                loss += self.net.forward_backward()
            with self.exchange.gradients():
                loss += self.net.forward_backward()
        loss /= self.param.iter_size
        if not math.isfinite(loss):  # before the update, so the weights stay finite
            self._losses.append(loss)
            parts = ", ".join(f"{name} = {value:g}" for name, value in loss_parts(self.net).items())
            raise SolverError(f"iteration {self.iter}: the loss is {loss} ({parts}); the weights were not updated")
        self._losses.append(self.exchange.mean(loss))
        if self._due(self.param.display):
            self.exchange.check_weights(self)
            self._log.train(self.iter, self.param.display, self.smoothed_loss, self.net)
        for _, on_gradients_ready in self._callbacks:
            on_gradients_ready()
        self.apply_update()

    def apply_update(self) -> None:
        """Update the weights by the gradients in the net's diffs. This counts as one iteration."""
        self.plateau.observe(self.param, self.iter, self.smoothed_loss)
        rate = self.lr
        if self._due(self.param.display):
            logger.info("Iteration %d, lr = %g", self.iter, rate)
        self._is_updating = True
        updates.apply_update(self, rate)
        self.iter += 1
        self._last.state, self._is_updating = None, False

    @property
    def smoothed_loss(self) -> float:
        """The mean loss of the last average_loss iterations."""
        return sum(self._losses) / len(self._losses) if self._losses else math.nan

    # Testing.

    def test_all(self) -> list[Arrays]:
        """Run every test net with the current weights.

        Returns
        -------
        list of dict of str to ndarray
            For each test net, the mean of each output over test_iter batches.
        """
        self.stopped = False
        return [self.test(i) for i in range(len(self.test_nets)) if not self.stopped]

    def test(self, index: int) -> Arrays:
        """Run one test net with the current weights.

        Parameters
        ----------
        index : int
            The index in test_nets.

        Returns
        -------
        dict of str to ndarray
            The mean of each output over test_iter batches. Empty after a stop, and in ranks other than 0, which only wait.
        """
        net, batches = self.test_nets[index], self.param.test_iter[index]
        logger.info("Iteration %d, Testing net (#%d)", self.iter, index)
        net.share_with(self.net)  # each time, as in Caffe
        means: Arrays = {}
        loss = 0.0
        with debug_info(net, self.param.debug_info):
            for _ in range(batches):
                if self._stop_requested():
                    logger.info("Test interrupted.")
                    return {}
                if self.exchange.rank:
                    continue
                with self.exchange.alone():
                    outputs = net.forward()
                for name, array in outputs.items():
                    # New arrays: outputs are views.
                    means[name] = means[name] + array / batches if name in means else array / batches
                loss += sum(loss_parts(net).values()) / batches
        if self.exchange.rank:
            return {}
        if self.param.test_compute_loss:
            logger.info("Test loss: %g", loss)
        net_outputs("Test", means, net.blob_loss_weights)
        for report in self._tested:
            report(index, means)
        return means

    def _stop_requested(self) -> bool:
        """Handle requests between two batches of a test; return whether a stop was requested."""
        while (action := self.exchange.agree(self._request())) is Action.SNAPSHOT:
            self.snapshot()
        self.stopped = self.stopped or action is Action.STOP
        return self.stopped

    # Snapshots.

    def snapshot(self) -> Path:
        """Write a .caffemodel with the box targets folded in, and a .solverstate.

        Their names begin with ``<snapshot_prefix>_iter_<iter>``. All ranks must call it; rank 0 writes.

        Returns
        -------
        Path
            The path of the .caffemodel.
        """
        self.exchange.check_weights(self)
        running = {**self.exchange.states(self._last.state or self._running_state()), SETTINGS: self._settings_state()}
        if self.exchange.rank:
            return snapshots.paths(self.param, self.iter)[0]
        if self.keep:
            self._snapshots = [*(i for i in self._snapshots if i != self.iter), self.iter]
            running = {**running, SNAPSHOTS: self._snapshots}
        with self.exchange.alone():
            self._make_snapshot_folder()
            model = snapshots.write(self, running)
        self._saved_iter = self.iter
        logger.info("Snapshot written to %s", model)
        while self.keep and len(self._snapshots) > self.keep:
            snapshots.remove(self.param, self._snapshots.pop(0))
        return model

    def save_best(self) -> Path:
        """Write the weights for the test net to ``<snapshot_prefix>_best.caffemodel``.

        Returns
        -------
        Path
            The path.
        """
        path = snapshots.best_path(self.param)
        self._make_snapshot_folder()
        self.save(unlinked(granted(path, self.folder), DataError))
        return path

    def _snapshot_after(self, error: Exception) -> None:
        """Write a snapshot of the last complete iteration; add to the error's message how to resume."""
        wanted = self.param.snapshot > 0 or self.param.snapshot_after_train
        if not wanted or self.exchange.count > 1 or self.iter == self._saved_iter:
            return
        if self._is_updating:
            add_note(error, f"no snapshot was written: the update of iteration {self.iter} is incomplete")
            return
        try:
            self._last.put_back()
            self.snapshot()
        except Exception as failure:  # the first error counts
            add_note(error, f"no snapshot of the {self.iter} complete iterations could be written: {failure}")
        else:
            file = snapshots.paths(self.param, self.iter)[1]
            resume = self.resume_advice or f"train --snapshot {pasted(str(file), path=True)}"
            add_note(error, f"the state after {self.iter} iterations is saved; to resume: {resume}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights for the test net, with the box targets' means and stds folded in.

        Parameters
        ----------
        path : str or path
            The file, in a format of `Net.save`.
        """
        with folded(self.net, self.settings):
            self.net.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a .solverstate or .solverstate.h5: weights, history and iteration.

        Call it after set_roidb, and after making a `Validation`.

        Parameters
        ----------
        path : str or path
            The state.

        Raises
        ------
        WeightsError
            The state is of another net or solver, or its weights are missing.

        Notes
        -----
        minicaffe's states also restore random numbers and the order of the data, so training continues bit for bit.
        """
        state, running = snapshots.read(path, self)
        plateau = snapshots.plateau(path, state, self.param)
        if running:
            with misfits(path):
                fields = Fields(running)
                if SETTINGS in fields:
                    self._report_changes(fields.inner(SETTINGS).values)
                if self.validation and VALIDATION in fields:
                    self.validation.restore(fields.inner(VALIDATION))
                self._snapshots = fields.wholes(SNAPSHOTS, 0, MOST) if SNAPSHOTS in fields else []
                restore_running_state(running, self.net, self.test_nets, self._losses)
        snapshots.load_weights(path, state, running, self)
        for history, array in zip(self.history, state.history, strict=True):
            history[...] = array.reshape(history.shape)  # old states have shapes of 4 axes
        self.iter = self._saved_iter = state.iteration
        self._last.state, self._is_updating = None, False
        self.plateau = plateau
        self._resumed = self._resumed or bool(running)

    def _running_state(self) -> State:
        state = running_state(self.net, self.test_nets, self._losses)
        return {**state, VALIDATION: self.validation.state()} if self.validation else state

    def _settings_state(self) -> State:
        """Return the settings that decide what is learned, as JSON."""
        param, epoch = self.param, epoch_of(self)
        rates = ("base_lr", "momentum", "weight_decay", "clip_gradients")
        found = {name: float(f"{getattr(param, name):g}") for name in rates}  # 0.05, not 0.05000000074505806
        found["batch"] = epoch.per_iteration if epoch else param.iter_size
        state: State = json.loads(encoded_state(found | changed_values(self.settings, unused="TEST")))
        return state

    def _report_changes(self, before: State) -> None:
        """Log the settings that differ from those of a snapshot."""
        now, default = self._settings_state(), "the default"
        pairs = {name: (before.get(name, default), now.get(name, default)) for name in dict.fromkeys([*before, *now])}
        if changes := ", ".join(f"{name} {was} (now {given})" for name, (was, given) in pairs.items() if was != given):
            text = shortened(on_one_line(changes))
            logger.warning("The snapshot was trained with %s. To continue as before, repeat its options.", text)

    def _make_snapshot_folder(self) -> None:
        folder = Path(self.param.snapshot_prefix).parent
        granted(folder, self.folder)
        with os_errors_as(SolverError, f"{folder}: cannot make the folder of snapshot_prefix"):
            folder.mkdir(parents=True, exist_ok=True)

    # Others.

    def share_weights(self, net: Net) -> None:
        """Share the weights of another net, and train them. The name is pycaffe's.

        Parameters
        ----------
        net : Net
            The net that owns the weights.
        """
        self.net.share_with(net)

    def add_callback(self, on_start: Callable[[], None], on_gradients_ready: Callable[[], None]) -> None:
        """Add callbacks to each iteration. The name is pycaffe's.

        Parameters
        ----------
        on_start : callable
            Called without arguments before the iteration's first pass.
        on_gradients_ready : callable
            Called without arguments before the iteration's update.
        """
        self._callbacks.append((on_start, on_gradients_ready))

    def set_action_function(self, request: Request) -> None:
        """Set the function that requests a stop or a snapshot.

        Parameters
        ----------
        request : callable
            Called after each iteration and between a test's batches. It returns an Action.
        """
        self._request = request

    def on_progress(self, report: Callable[[Progress], None]) -> None:
        """Add a function that is called after each iteration.

        Parameters
        ----------
        report : callable
            Called with the Progress.
        """
        self._progress.append(report)

    def on_test(self, report: Callable[[int, Arrays], None]) -> None:
        """Add a function that is called after each complete test, in rank 0.

        Parameters
        ----------
        report : callable
            Called with the test net's index and the mean of each output, by name.
        """
        self._tested.append(report)

    def _due(self, interval: int) -> bool:
        return interval > 0 and self.iter % interval == 0


def loss_parts(net: Net) -> dict[str, float]:
    """Return each loss blob's weighted contribution to the loss of the last forward pass."""
    return {name: weight * float(net.blobs[name].data.sum()) for name, weight in net.blob_loss_weights.items() if weight}


def _check(param: caffe_pb2.SolverParameter) -> None:
    for name in ("iter_size", "average_loss"):
        if getattr(param, name) < 1:
            raise SolverError(f"{name} must be > 0, got {getattr(param, name)}")
    if any(count < 1 for count in param.test_iter):
        raise SolverError(f"every test_iter must be > 0, got {list(param.test_iter)}")
    if param.regularization_type not in ("L1", "L2"):
        raise SolverError(f'regularization_type must be L1 or L2, got "{param.regularization_type}"')
