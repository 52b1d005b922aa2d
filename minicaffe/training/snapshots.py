"""Snapshots: PREFIX_iter_N.caffemodel and PREFIX_iter_N.solverstate (in HDF5 with .h5), after N updates.

A state exists only with the weights that it names: an older state of the same name is removed first, then the weights are
written, then the state. Each file is written whole or not at all (files.py), so a crash leaves only complete snapshots.
"""

from __future__ import annotations

import logging
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from minicaffe.data.state_fields import Fields, whole
from minicaffe.errors import DataError, Error, WeightsError, os_errors_as
from minicaffe.files import granted, unlinked
from minicaffe.formats.weights import read_weights
from minicaffe.proto import caffe_pb2

from .lr_policy import Plateau, current_step
from .running_state import State, decoded_state, encoded_state, kept_weights, misfits, put_weights
from .solver_nets import found
from .solver_state import TrainingState, read_checked, write_state
from .target_scaling import folded, folded_layers, unfold

if TYPE_CHECKING:
    from .solver import SGDSolver

logger = logging.getLogger("minicaffe.solver")

File = str | os.PathLike[str]


def write(solver: SGDSolver, running: State) -> Path:
    """Write both files of a snapshot; returns the weights' path. snapshot_diff also writes the weights' diffs, which the last
    update subtracted (from the weights without folded box targets).
    Raises DataError if one of them is a link, Error if writing fails."""
    param, net, settings = solver.param, solver.net, solver.settings
    model, file = paths(param, solver.iter)
    for written in (model, file):
        unlinked(granted(written, solver.folder), DataError)
    unfolded = {layer.name: kept_weights(layer.blobs) for layer in folded_layers(net, settings)}  # folding and back would round
    with os_errors_as(Error, f"{file}: cannot be replaced"):
        file.unlink(missing_ok=True)  # first: an old state must not name new weights
    with folded(net, settings):
        net.save(model, diffs=param.snapshot_diff)
    history = [blob.read_data() for blob in solver.history_blobs]
    text = encoded_state({**running, "unfolded": unfolded})
    plateau = solver.plateau
    step = current_step(param, solver.iter, plateau.current_step)
    events = (plateau.minimum_loss, plateau.iter_last_event) if param.lr_policy == "plateau" else (None, None)
    write_state(file, TrainingState(solver.iter, str(model), step, history, text, *events))
    return model


def paths(param: caffe_pb2.SolverParameter, iteration: int) -> tuple[Path, Path]:
    """The paths of a snapshot's weights and state."""
    suffix = ".h5" if param.snapshot_format == caffe_pb2.SolverParameter.HDF5 else ""
    base = f"{param.snapshot_prefix}_iter_{iteration}"
    return Path(f"{base}.caffemodel{suffix}"), Path(f"{base}.solverstate{suffix}")


def read(path: File, solver: SGDSolver) -> tuple[TrainingState, State]:
    """A state, and minicaffe's running state ({} for Caffe's), for the solver, whose net takes the layout of the weights that
    the state names. Raises WeightsError."""
    state = read_checked(path)
    if state.learned_net:
        solver.net.take_layouts(read_weights(_learned(state, path, solver)).shapes())
    shapes = [blob.shape for blob in solver.history_blobs]
    if len(state.history) != len(shapes):
        raise WeightsError(f"{path}: {len(state.history)} history blobs, but this solver keeps {len(shapes)} for its net")
    for i, (array, shape) in enumerate(zip(state.history, shapes, strict=True)):
        if array.size != math.prod(shape):  # not the shape: old states have 4 axes
            raise WeightsError(f"{path}: history blob {i} has shape {array.shape}, but the net's blob has {shape}")
    return state, decoded_state(state.running, path)


def plateau(path: File, state: TrainingState, param: caffe_pb2.SolverParameter) -> Plateau:
    """The state's progress of lr_policy "plateau"; that of a start for another policy. Raises WeightsError."""
    if param.lr_policy != "plateau":  # SSD's fork then writes the values of uninitialised memory
        return Plateau()
    loss, event = state.minimum_loss, state.iter_last_event
    if loss is not None and math.isnan(loss):
        raise WeightsError(f'{path}: "minimum_loss" must be a number, got nan')
    with misfits(path):
        last = whole(event, "iter_last_event", 0, state.iteration) if event is not None else 0
    return Plateau(state.current_step, Plateau.minimum_loss if loss is None else loss, last)


def load_weights(path: File, state: TrainingState, running: State, solver: SGDSolver) -> None:
    """Load the weights that a state names, with box targets unfolded. Raises WeightsError if they are another net's."""
    if not state.learned_net:
        return
    net = solver.net
    report = net.copy_from(_learned(state, path, solver))
    if report.missing:
        raise WeightsError(f"{path}: a snapshot of another net: {report.file} lacks weights of {', '.join(report.missing)}")
    if "unfolded" not in running:
        unfold(net, solver.settings)
        return
    with misfits(path):
        fields = Fields(running).inner("unfolded")
        if unknown := [name for name in fields.values if name not in net.params]:
            raise ValueError(f'"{fields.path(unknown[0])}" is of a layer that this net lacks')
        for name in fields.values:
            put_weights(fields.items(name), net.params[name], fields.path(name))


def latest(prefix: str, *beside: Path) -> Path | None:
    """The state of the newest complete snapshot of a snapshot_prefix, or None. A state is skipped if it cannot be read, or if
    its weights are neither in its folder, nor in one of beside, nor where a prototxt may name files."""
    name = re.compile(re.escape(Path(prefix).name) + r"_iter_(\d+)\.solverstate(\.h5)?")
    folder = Path(prefix).parent
    states = [(int(match[1]), file) for file in folder.glob("*_iter_*") if (match := name.fullmatch(file.name))]
    for _, file in sorted(states, reverse=True):
        try:
            state = read_checked(granted(file, folder, *beside))
            read_weights(granted(_beside(state.learned_net, file), folder, *beside))
        except Error as error:
            logger.warning("%s is skipped: %s", file, error)
        else:
            return file
    return None


def _learned(state: TrainingState, path: File, solver: SGDSolver) -> Path:
    """The weights file that the state names, found."""
    return found(_beside(state.learned_net, path), solver.folder, Path(path).parent)


def _beside(name: str, state: File) -> str:
    """The weights file that a state names: at its path, or of the same name in the state's folder."""
    neighbour = Path(state).parent / Path(name).name
    return str(neighbour) if not Path(name).is_file() and neighbour.is_file() else name
