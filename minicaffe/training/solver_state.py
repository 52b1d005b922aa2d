"""The .solverstate (or .solverstate.h5), from which a training continues. Source: Caffe's sgd_solver.cpp.

Binary: SolverState's iter 1, learned_net 2, history 3 (BlobProtos), current_step 4; in SSD's fork, for lr_policy "plateau",
minimum_loss 5 and iter_last_event 6. HDF5: datasets of the same names, with /history/<i>. minicaffe adds field 90001, in HDF5 a
dataset, which Caffe ignores: running_state.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.state_fields import whole
from minicaffe.errors import WeightsError
from minicaffe.files import replacing
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
from minicaffe.formats.weights import HDF5_SIGNATURE, encoded_blob, file_error, mapped, refuse_lookalikes
from minicaffe.formats.wire import BYTES, FOUR_BYTES, VARINT, WireError, fields, header, numbers, signed
from minicaffe.proto import caffe_pb2

Path = str | os.PathLike[str]

RUNNING = caffe_pb2.SolverState.MINICAFFE_RUNNING_STATE_FIELD_NUMBER
RUNNING_NAME = "minicaffe_running_state"
MINIMUM_LOSS = caffe_pb2.SolverState.MINIMUM_LOSS_FIELD_NUMBER
ITER_LAST_EVENT = caffe_pb2.SolverState.ITER_LAST_EVENT_FIELD_NUMBER


@dataclass(frozen=True)
class TrainingState:
    """iteration: the number of updates. learned_net: its weights file. history: an array per learnable blob, for AdaDelta and
    Adam followed by a second one per blob. running: running_state.py's JSON, empty in Caffe's files. minimum_loss,
    iter_last_event: of lr_policy "plateau"; None in most files."""

    iteration: int
    learned_net: str
    current_step: int
    history: list[NDArray[Any]]
    running: bytes = b""
    minimum_loss: float | None = None
    iter_last_event: int | None = None


def write_state(path: Path, state: TrainingState) -> None:
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
        file.write(head.SerializeToString())  # its history follows: a message's fields may be concatenated
        for array in state.history:
            start, values = encoded_blob(array)
            file.write(header(3, len(start) + values.nbytes))
            file.write(start)
            file.write(values)


def read_state(path: Path) -> TrainingState:
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
                history += [part.array] if item.whole else []  # fields() raises next for a part
            else:  # Caffe writes no other, so the file is something else
                raise WireError(item.offset, f"a SolverState has no field {item.number} of wire type {item.kind}")
    except WireError as error:
        raise file_error(path, error, ".solverstate") from error
    last_event = integers.get(ITER_LAST_EVENT)
    learned, running = texts[2].decode("utf-8", "replace"), texts[RUNNING]
    return TrainingState(integers.get(1, 0), learned, integers.get(4, 0), history, running, minimum_loss, last_event)


def read_checked(path: Path) -> TrainingState:
    """read_state for resuming. Raises WeightsError also for an impossible iteration or step."""
    state = read_state(path)
    for name, value in (("iter", state.iteration), ("current_step", state.current_step)):
        try:
            whole(value, name, 0, 2**31 - 1)
        except ValueError as error:
            raise WeightsError(f"{path}: {error}") from None
    return state


def _write_hdf5(path: Path, state: TrainingState) -> None:
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


def _read_hdf5(path: Path) -> TrainingState:
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


def _scalar(file: Any, name: str, path: Path, kinds: str) -> Any:
    """The one number of a dataset, of these kinds of types: i and u, or f."""
    values, what = read_number_dataset(file, name, f"{path}: /{name}"), "integer" if "i" in kinds else "floating-point number"
    if values.size != 1:
        raise WeightsError(f"{path}: /{name} has shape {values.shape}, not one {what}")
    if values.dtype.kind not in kinds:
        raise WeightsError(f"{path}: /{name} holds {values.dtype} values, not one {what}")
    return values.item()
