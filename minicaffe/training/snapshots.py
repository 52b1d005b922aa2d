"""Snapshots: PREFIX_iter_N.caffemodel and PREFIX_iter_N.solverstate (in HDF5 with .h5), after N updates.

A state exists only with the weights that it names: an older state of the same name is removed first, then the weights are
written, then the state. Each file is written whole or not at all (files.py), so a crash leaves only complete snapshots.

Binary: SolverState's iter 1, learned_net 2, history 3 (BlobProtos), current_step 4; in SSD's fork, for lr_policy "plateau",
minimum_loss 5 and iter_last_event 6. HDF5: datasets of the same names, with /history/<i>. minicaffe adds field 90001, in HDF5 a
dataset, which Caffe ignores: running_state.py.
Source: Caffe's sgd_solver.cpp.
"""

from __future__ import annotations

import logging
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.state_fields import Fields, whole
from minicaffe.errors import DataError, Error, WeightsError, os_errors_as
from minicaffe.files import granted, replacing, unlinked
from minicaffe.formats import caffemodel
from minicaffe.formats.hdf5 import (
    child_of,
    has,
    read_float_dataset,
    read_number_dataset,
    read_text_dataset,
    reading,
    require_h5py,
    writing,
)
from minicaffe.formats.weights import HDF5_SIGNATURE, encoded_blob, file_error, mapped, read_weights, refuse_lookalikes
from minicaffe.formats.wire import BYTES, FOUR_BYTES, VARINT, WireError, fields, header, numbers, signed
from minicaffe.proto import caffe_pb2

from .lr_policy import Plateau, current_step
from .running_state import State, decoded_state, encoded_state, kept_weights, misfits, put_weights
from .solver_nets import found
from .target_scaling import folded, folded_layers, unfold

if TYPE_CHECKING:
    from .solver import SGDSolver

logger = logging.getLogger("minicaffe.solver")

FilePath = str | os.PathLike[str]

RUNNING = caffe_pb2.SolverState.MINICAFFE_RUNNING_STATE_FIELD_NUMBER
RUNNING_NAME = "minicaffe_running_state"
MINIMUM_LOSS = caffe_pb2.SolverState.MINIMUM_LOSS_FIELD_NUMBER
ITER_LAST_EVENT = caffe_pb2.SolverState.ITER_LAST_EVENT_FIELD_NUMBER


@dataclass(frozen=True)
class TrainingState:
    """The contents of a .solverstate. iteration: the number of updates.

    learned_net: its weights file. history: an array per learnable blob; for AdaDelta and Adam a second array per blob follows
    them. running: running_state.py's JSON, empty in Caffe's files. minimum_loss, iter_last_event: of lr_policy "plateau"; None
    in most files.
    """

    iteration: int
    learned_net: str
    current_step: int
    history: list[NDArray[Any]]
    running: bytes = b""
    minimum_loss: float | None = None
    iter_last_event: int | None = None


def write(solver: SGDSolver, running: State) -> Path:
    """Write both files of a snapshot; return the weights' path.

    With snapshot_diff, it also writes the weights' diffs, which the last update subtracted (from the weights without folded box
    targets). Raises DataError if one of the files is a link, Error if writing fails.
    """
    param, net, settings = solver.param, solver.net, solver.settings
    model, file = paths(param, solver.iter)
    for written in (model, file):
        unlinked(granted(written, solver.folder), DataError)
    # Unfolding after folding would round.
    unfolded = {layer.name: kept_weights(layer.blobs) for layer in folded_layers(net, settings)}
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


def remove(param: caffe_pb2.SolverParameter, iteration: int) -> None:
    """Remove the snapshot of an iteration; log a file that cannot be removed."""
    for file in reversed(paths(param, iteration)):  # the state first: it must not name missing weights
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s: this old snapshot cannot be removed: %s", file, error.strerror or error)


def best_path(param: caffe_pb2.SolverParameter) -> Path:
    """Return the path of the weights with the best validation."""
    return Path(f"{param.snapshot_prefix}_best.caffemodel{_suffix(param)}")


def _suffix(param: caffe_pb2.SolverParameter) -> str:
    return ".h5" if param.snapshot_format == caffe_pb2.SolverParameter.HDF5 else ""


def paths(param: caffe_pb2.SolverParameter, iteration: int) -> tuple[Path, Path]:
    """Return the paths of a snapshot's weights and state."""
    suffix = _suffix(param)
    base = f"{param.snapshot_prefix}_iter_{iteration}"
    return Path(f"{base}.caffemodel{suffix}"), Path(f"{base}.solverstate{suffix}")


def read(path: FilePath, solver: SGDSolver) -> tuple[TrainingState, State]:
    """Return a state, and minicaffe's running state ({} for Caffe's), for the solver. Raises WeightsError.

    The solver's net adopts the layout of the weights that the state names.
    """
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


def plateau(path: FilePath, state: TrainingState, param: caffe_pb2.SolverParameter) -> Plateau:
    """Return the state's progress of lr_policy "plateau"; for another policy, an initial one. Raises WeightsError."""
    if param.lr_policy != "plateau":  # SSD's fork then writes the values of uninitialised memory
        return Plateau()
    loss, event = state.minimum_loss, state.iter_last_event
    if loss is not None and math.isnan(loss):
        raise WeightsError(f'{path}: "minimum_loss" must be a number, got nan')
    with misfits(path):
        last = whole(event, "iter_last_event", 0, state.iteration) if event is not None else 0
    return Plateau(state.current_step, Plateau.minimum_loss if loss is None else loss, last)


def load_weights(path: FilePath, state: TrainingState, running: State, solver: SGDSolver) -> None:
    """Load the weights that a state names, with box targets unfolded. Raises WeightsError if they belong to another net."""
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
    """Return the state of the newest complete snapshot of a snapshot_prefix, or None.

    A state is skipped if it cannot be read. Its weights must be in its folder, in one of beside, or where a prototxt may name
    files.
    """
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


def _learned(state: TrainingState, path: FilePath, solver: SGDSolver) -> Path:
    """Find the weights file that the state names; return its path."""
    return found(_beside(state.learned_net, path), solver.folder, Path(path).parent)


def _beside(name: str, state: FilePath) -> str:
    """Return the weights file that a state names: at its path, or else the file of that name in the state's folder."""
    neighbour = Path(state).parent / Path(name).name
    return str(neighbour) if not Path(name).is_file() and neighbour.is_file() else name


def write_state(path: FilePath, state: TrainingState) -> None:
    """Write a .solverstate, in HDF5 if the name ends in .h5. Raises Error."""
    if str(path).endswith(".h5"):
        _write_hdf5(path, state)
        return
    head = caffe_pb2.SolverState(iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step)
    if state.running:
        head.minicaffe_running_state = state.running
    if state.minimum_loss is not None:
        head.minimum_loss = state.minimum_loss
    if state.iter_last_event is not None:
        head.iter_last_event = state.iter_last_event
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(head.SerializeToString())  # the history follows: fields may be concatenated
        for array in state.history:
            start, values = encoded_blob(array)
            file.write(header(3, len(start) + values.nbytes))
            file.write(start)
            file.write(values)


def read_state(path: FilePath) -> TrainingState:
    """Read a .solverstate in either format, recognised by its first bytes. Raises WeightsError, LimitError."""
    buffer = mapped(path)
    if buffer[: len(HDF5_SIGNATURE)] == HDF5_SIGNATURE:
        return _read_hdf5(path)
    refuse_lookalikes(path, buffer, "a .solverstate")
    integers: dict[int, int] = {}
    minimum_loss, texts, history = None, {2: b"", RUNNING: b""}, []
    try:
        for item in fields(buffer, 0, len(buffer)):
            if item.number in (1, 4, ITER_LAST_EVENT) and item.kind == VARINT:
                integers[item.number] = signed(item.value)
            elif item.number == MINIMUM_LOSS and item.kind == FOUR_BYTES:
                minimum_loss = float(numbers(buffer, item, np.dtype("<f4"))[-1])
            elif item.number in texts and item.kind == BYTES:
                texts[item.number] = buffer[item.start : item.end]
            elif item.number == 3 and item.kind == BYTES:
                part = caffemodel.blob(buffer, item.start, item.end, whole=item.whole)
                history += [part.array] if item.whole else []  # fields() next raises for a truncated field
            else:  # Caffe writes no other field, so the file is something else
                raise WireError(item.offset, f"a SolverState has no field {item.number} of wire type {item.kind}")
    except WireError as error:
        raise file_error(path, error, ".solverstate") from error
    last_event = integers.get(ITER_LAST_EVENT)
    learned, running = texts[2].decode("utf-8", "replace"), texts[RUNNING]
    return TrainingState(integers.get(1, 0), learned, integers.get(4, 0), history, running, minimum_loss, last_event)


def read_checked(path: FilePath) -> TrainingState:
    """Read a .solverstate for resuming. Raises WeightsError, also for an impossible iteration or step, and LimitError."""
    state = read_state(path)
    for name, value in (("iter", state.iteration), ("current_step", state.current_step)):
        try:
            whole(value, name, 0, 2**31 - 1)
        except ValueError as error:
            raise WeightsError(f"{path}: {error}") from None
    return state


def _write_hdf5(path: FilePath, state: TrainingState) -> None:
    with writing(path) as file:
        file.create_dataset("iter", data=np.array([state.iteration], np.int32))
        file.create_dataset("current_step", data=np.array([state.current_step], np.int32))
        file.create_dataset("learned_net", data=np.bytes_(state.learned_net.encode()))
        if state.minimum_loss is not None:
            file.create_dataset("minimum_loss", data=np.array([state.minimum_loss], np.float32))
        if state.iter_last_event is not None:
            file.create_dataset("iter_last_event", data=np.array([state.iter_last_event], np.int32))
        for i, array in enumerate(state.history):
            file.create_dataset(f"history/{i}", data=array)
        if state.running:
            file.create_dataset(RUNNING_NAME, data=np.frombuffer(state.running, np.uint8))


def _read_hdf5(path: FilePath) -> TrainingState:
    with reading(path) as file:
        group = child_of(file, "history")
        if not isinstance(group, require_h5py().Group) or not has(file, "iter"):
            raise WeightsError(f"{path}: the HDF5 file has no /history and /iter, so it is not a .solverstate")
        history = [read_float_dataset(group, str(i), f"{path}: /history/{i}") for i in range(len(group))]
        learned = read_text_dataset(file, "learned_net", f"{path}: /learned_net") if has(file, "learned_net") else b""
        step = _scalar(file, "current_step", path, "iu") if has(file, "current_step") else 0
        running = read_number_dataset(file, RUNNING_NAME, f"{path}: /{RUNNING_NAME}") if has(file, RUNNING_NAME) else b""
        loss = float(_scalar(file, "minimum_loss", path, "f")) if has(file, "minimum_loss") else None
        last_event = _scalar(file, "iter_last_event", path, "iu") if has(file, "iter_last_event") else None
        iteration, name = _scalar(file, "iter", path, "iu"), learned.decode("utf-8", "replace")
        return TrainingState(iteration, name, step, history, bytes(running), loss, last_event)


def _scalar(file: Any, name: str, path: FilePath, kinds: str) -> Any:
    """Return the one number of a dataset. kinds: the accepted kinds of types, "iu" or "f". Raises WeightsError."""
    values, what = read_number_dataset(file, name, f"{path}: /{name}"), "integer" if "i" in kinds else "floating-point number"
    if values.size != 1:
        raise WeightsError(f"{path}: /{name} has shape {values.shape}, not one {what}")
    if values.dtype.kind not in kinds:
        raise WeightsError(f"{path}: /{name} holds {values.dtype} values, not one {what}")
    return values.item()
