"""Convolutions of 2-d maps with cuDNN, through nvidia-cudnn-frontend. All others are left to convolution.py.

    run(kind, convolution, x, weight, y) -> the stream's plan of these shapes, made at its first use -> its launches

A plan is the engine that cuDNN's heuristics rank first (nothing is timed, so every run takes the same one) among those that
give the same bits on every run, say that they sum the products themselves (no Winograd, no FFT) in float32, and round factors
only where allow_tf32 allows TF32. With its plan and workspace made, `run` makes and allocates nothing and waits for nothing.
Source: NVIDIA's cudnn-frontend, the signatures of cudnn.pygraph, and its numerical notes.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from minicaffe.cuda.stream import PerStream
from minicaffe.errors import DeviceError, Error, install
from minicaffe.process_fork import renewed

from . import cublas, graph
from .blas import tf32_allowed
from .device import current, launch

logger = logging.getLogger("minicaffe.cuda")

VARIABLE = "MINICAFFE_CUDNN"
WAYS = ("auto", "off")

OLDEST = (1, 28)
"""Least version of nvidia-cudnn-frontend. Older ones have other handles."""

WORKSPACE = 256 << 20
"""Most bytes of workspace of a plan, which may include a gradient until it is added. TF32's fast engines need as much."""

PLANS = 2048
"""Most plans that a stream keeps. The least recently used one is dropped."""

COMPANIONS = ("libcudart", "libcublasLt")
"""Libraries that cuDNN and its front end open by their names."""

Kind = Literal["forward", "data", "weight"]
"""y from x and the weights; x's gradient from y's and the weights; the weights' gradient from x and y's."""

Shape = tuple[int, int, int, int]


class Convolution(NamedTuple):
    """The shapes of a convolution, and its pad, stride and dilation in pixels, (on H, on W).

    x (N, C, H, W), weight (M, C / group, KH, KW), y (N, M, OH, OW).
    """

    x: Shape
    weight: Shape
    y: Shape
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def __str__(self) -> str:
        pixels = f"pad {self.pad}, stride {self.stride}, dilation {self.dilation}"
        return f"a convolution of {self.x} by {self.weight} to {self.y}, {pixels}"


def run(kind: Kind, convolution: Convolution, first: int, second: int, result: int) -> bool:
    """Compute a product in float32, from and to arrays at these addresses.

    The weights' gradient is added to the result. Return False, with nothing computed, if cuDNN is missing, switched off or
    lacks an engine. Raises DeviceError.
    """
    library = _library()
    if library is None:
        return False
    device = current()
    with device.active():
        stream = device.current_stream
        mine = library.streams.of(stream)
        plan = mine.plan(kind, convolution)
        if plan is None:
            return False
        count = plan.sums
        place = stream.workspace(plan.workspace + 4 * count) if plan.workspace or count else 0
        to = place + plan.workspace if count else result
        try:
            plan.graph.execute({1: first, 2: second, 3: to}, place, handle=mine.handle)
        except Exception as error:  # the front end's errors have no common base
            raise DeviceError(f"cuDNN, {kind} of {convolution}: {error}") from error
        if count:
            launch("split.sum", "float32", count, count, result, to, 0, 0, result)
    return True


def backend() -> str:
    """Return the library for convolutions on the GPU: "cuDNN ..." with its versions, or "im2col (...)" with the reason."""
    library = _library()
    if library is not None:
        return library.version
    return f"im2col ({_state.reason if _allowed() else 'cuDNN is switched off'})"


def allow_cudnn(allowed: bool = True) -> None:
    """Allow or forbid cuDNN for convolutions, if installed. On by default, unless MINICAFFE_CUDNN is off."""
    _state.allowed = allowed
    graph.settings_changed()


class Plan(NamedTuple):
    """A plan.

    graph: the front end's, whose tensors have the numbers 1 to 3; workspace: bytes; sums: numbers to add to the result.
    """

    graph: Any
    workspace: int
    sums: int


class OfStream:
    """A stream's cuDNN handle, and the plans made with it."""

    def __init__(self, frontend: Any) -> None:
        self.handle = frontend.create_handle()
        self._frontend = frontend
        self._plans: OrderedDict[tuple[Kind, Convolution, bool], Plan | None] = OrderedDict()

    def plan(self, kind: Kind, convolution: Convolution) -> Plan | None:
        """Return the plan in allow_tf32's precision; None, with one warning in the log, if cuDNN has none."""
        key = kind, convolution, tf32_allowed()
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key]
        try:
            plan = self._new(*key)
        except Exception as error:
            plan = None
            _report(kind, convolution, error)
        self._plans[key] = plan
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        return plan

    def _new(self, kind: Kind, convolution: Convolution, tf32: bool) -> Plan:
        cudnn, sums = self._frontend, math.prod(convolution.weight) if kind == "weight" else 0
        if 4 * sums > WORKSPACE:
            raise DeviceError(f"the gradient has {4 * sums} bytes, of at most {WORKSPACE}")
        graph = _graph(cudnn, self.handle, kind, convolution)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(_refused(cudnn.numerical_note, tf32))
        graph.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION])  # it would compile for each new shape
        graph.deselect_workspace_greater_than(WORKSPACE)
        graph.check_support()
        graph.build_plans()
        workspace = -(-graph.get_workspace_size() // 256) * 256  # aligned as an allocation, for the memory that follows
        return Plan(graph, workspace, sums)


def _graph(cudnn: Any, handle: Any, kind: Kind, convolution: Convolution) -> Any:
    """Return the graph of one operation, from tensors 1 and 2 to tensor 3."""
    real = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=real, intermediate_data_type=real, compute_data_type=real, handle=handle)
    operation, names, shapes = {
        "forward": (graph.conv_fprop, ("image", "weight"), (convolution.x, convolution.weight, convolution.y)),
        "data": (graph.conv_dgrad, ("loss", "filter"), (convolution.y, convolution.weight, convolution.x)),
        "weight": (graph.conv_wgrad, ("image", "loss"), (convolution.x, convolution.y, convolution.weight)),
    }[kind]
    tensors = {
        name: graph.tensor(dim=list(shape), stride=_strides(shape), data_type=real, uid=uid)
        for uid, (name, shape) in enumerate(zip(names, shapes), 1)
    }
    window = {"padding": list(convolution.pad), "stride": list(convolution.stride), "dilation": list(convolution.dilation)}
    result = operation(**tensors, **window, compute_data_type=real)
    result.set_output(True).set_data_type(real).set_dim(list(shapes[2])).set_stride(_strides(shapes[2])).set_uid(3)
    return graph


def _refused(note: Any, tf32: bool) -> list[Any]:
    """Return the numerical notes of the engines that are not used."""
    rounding = [note.DOWN_CONVERT_INPUTS, note.REDUCED_PRECISION_REDUCTION]  # engines that round to half precision
    other_sums = [note.FFT, note.WINOGRAD, note.WINOGRAD_TILE_4x4, note.WINOGRAD_TILE_6x6, note.WINOGRAD_TILE_13x13]
    exact = [] if tf32 else [note.TENSOR_CORE]  # tensor cores round float32 to TF32
    return [note.NONDETERMINISTIC, *rounding, *other_sums, *exact]


def _strides(shape: Sequence[int]) -> list[int]:
    """Return the distance between neighbours on each axis of a contiguous array, in elements."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.insert(0, strides[0] * length)
    return strides


class CuDNN:
    """cuDNN, through its front end. Raises DeviceError if that is too old or a library that it needs is missing."""

    def __init__(self, frontend: Any) -> None:
        if tuple(map(int, frontend.__version__.split(".")[:2])) < OLDEST:
            raise DeviceError(f"nvidia-cudnn-frontend is {frontend.__version__}, it must be {OLDEST[0]}.{OLDEST[1]} or newer")
        _load_companions()
        self.streams = PerStream(lambda: OfStream(frontend), lambda one, stream: frontend.set_stream(one.handle, stream))
        self.streams.of(current().current_stream)
        self.version = f"cuDNN {frontend.backend_version_string()} (nvidia-cudnn-frontend {frontend.__version__})"


def _load_companions() -> None:
    """Load the wheels' libraries that the system does not find."""
    for stem in COMPANIONS:
        said = f"{stem} is not installed"
        for path in cublas.candidates(stem):
            try:
                ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
                break
            except OSError as error:
                said = str(error)
        else:
            raise DeviceError(said)  # without libcublasLt, cuDNN would end the process


@dataclass
class _State:
    lock: Any = field(default_factory=lambda: renewed(threading.Lock()))
    allowed: bool | None = None
    tried: bool = False
    library: CuDNN | None = None
    reason: str = ""
    reported: set[tuple[Any, ...]] = field(default_factory=set)


_state = _State()


def _allowed() -> bool:
    """Return whether cuDNN is switched on. Raises Error if MINICAFFE_CUDNN is neither auto nor off."""
    if _state.allowed is None:
        way = os.environ.get(VARIABLE) or WAYS[0]
        if way not in WAYS:
            raise Error(f"{VARIABLE} must be one of {', '.join(WAYS)}, got {way!r}")
        _state.allowed = way != "off"
    return _state.allowed


def _library() -> CuDNN | None:
    """Return cuDNN, looked up once; None, with a line in the log, if it is switched off or missing."""
    if not _allowed():
        return None
    if not _state.tried:
        with _state.lock:
            if not _state.tried:
                _state.library = _found()
                _state.tried = True
    return _state.library


def _found() -> CuDNN | None:
    try:
        with current().active():
            library = CuDNN(importlib.import_module("cudnn"))
    except ModuleNotFoundError:
        _state.reason = f"nvidia-cudnn-frontend is not installed; {install('gpu-cudnn')}"
        logger.info("convolutions use im2col and a product: %s", _state.reason)
        return None
    except Exception as error:  # also from the front end: libcudnn is missing, or does not support the device
        _state.reason = f"cuDNN does not load: {error}; {install('gpu-cudnn')}"
        logger.warning("convolutions use im2col and a product: %s", _state.reason)
        return None
    logger.info("convolutions use %s", library.version)
    return library


def _report(kind: Kind, convolution: Convolution, error: Exception) -> None:
    """Log a line for each window and group, not for every size of a map."""
    channels = convolution.x[1] // convolution.weight[1]
    like = kind, channels, convolution.weight[2:], convolution.pad, convolution.stride, convolution.dilation
    if like not in _state.reported:
        _state.reported.add(like)
        logger.warning("cuDNN does not compute %s of %s: %s; im2col and a product do", kind, convolution, error)
