"""A stand-in for nvidia-cudnn-frontend's module cudnn that computes in host memory, which is the test device's memory.

Its names, arguments and order of calls are the real ones (test_cudnn.py compares them where the package is installed). Each
graph has the ENGINES below: the ones that must not be used are ranked first, and compute something else. It computes at once,
so it first waits for the stream of its handle, which a capture forbids; or, with `captured`, as a function that the driver
calls on the host. It leaves nothing in the workspace.
"""

from __future__ import annotations

import ctypes
import enum
import math
import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from which_device import skip_on_gpu

from minicaffe.cuda import convolution, cudnn

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
data_type = enum.Enum("data_type", "FLOAT DOUBLE HALF NOT_SET")
heur_mode = enum.Enum("heur_mode", "A B FALLBACK")
behavior_note = enum.Enum("behavior_note", "RUNTIME_COMPILATION")
build_plan_policy = enum.Enum("build_plan_policy", "HEURISTICS_CHOICE ALL")
numerical_note = enum.Enum(
    "numerical_note",
    "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD WINOGRAD_TILE_4x4"
    " WINOGRAD_TILE_6x6 WINOGRAD_TILE_13x13",
)


class cudnnGraphNotSupportedError(Exception):
    pass


@dataclass(frozen=True)
class Engine:
    """notes: of both kinds; workspace: bytes; factor: what the result is multiplied by, so that tests see a wrong engine."""

    name: str
    notes: tuple[enum.Enum, ...] = ()
    workspace: int = 0
    factor: float = 1.0


ENGINES = (
    *(
        Engine(note.name, (note,), factor=2.0)
        for note in (*numerical_note, *behavior_note)
        if note is not numerical_note.TENSOR_CORE
    ),
    Engine("large", workspace=cudnn.WORKSPACE + 1, factor=2.0),
    Engine("tf32", (numerical_note.TENSOR_CORE,), 100),
    Engine("float32", workspace=1000),
)


class Handle:
    def __init__(self, number: int) -> None:
        self.number, self.stream, self.busy = number, 0, threading.Lock()


@dataclass
class Tensor:
    dim: list[int] = field(default_factory=list)
    stride: list[int] = field(default_factory=list)
    data_type: enum.Enum | None = None
    uid: int | None = None
    output: bool = False

    def set_output(self, value: bool) -> Tensor:
        return self._set("output", value)

    def set_data_type(self, dtype: Any) -> Tensor:
        return self._set("data_type", dtype)

    def set_dim(self, dim: list[int]) -> Tensor:
        return self._set("dim", dim)

    def set_stride(self, stride: list[int]) -> Tensor:
        return self._set("stride", stride)

    def set_uid(self, uid: int) -> Tensor:
        return self._set("uid", uid)

    def _set(self, name: str, value: Any) -> Tensor:
        setattr(self, name, value)
        return self

    def array(self, address: int) -> np.ndarray:
        assert self.data_type is data_type.FLOAT
        assert type(address) is int and address % 16 == 0
        array = np.ctypeslib.as_array((ctypes.c_float * math.prod(self.dim)).from_address(address)).reshape(self.dim)
        assert self.stride == [n // 4 for n in array.strides]
        return array


class pygraph:
    def __init__(
        self, *, io_data_type: Any = None, intermediate_data_type: Any = None, compute_data_type: Any = None, handle: Any = None
    ) -> None:
        assert {io_data_type, intermediate_data_type, compute_data_type} == {data_type.FLOAT}
        self.module: StandIn = sys.modules["cudnn"]  # type: ignore[assignment]
        self.handle, self.done, self.engines, self.tensors = handle, "", [], []
        self.built: Engine | None = None

    def tensor(self, dim: list[int], stride: list[int], data_type: Any = None, uid: int = -1) -> Tensor:
        self.tensors.append(Tensor(dim, stride, data_type, uid))
        return self.tensors[-1]

    def conv_fprop(self, image: Tensor, weight: Tensor, *, compute_data_type: Any = None, **window: list[int]) -> Tensor:
        return self._operation("forward", (image, weight), window, compute_data_type)

    def conv_dgrad(self, loss: Tensor, filter: Tensor, *, compute_data_type: Any = None, **window: list[int]) -> Tensor:
        return self._operation("data", (loss, filter), window, compute_data_type)

    def conv_wgrad(self, image: Tensor, loss: Tensor, *, compute_data_type: Any = None, **window: list[int]) -> Tensor:
        return self._operation("weight", (image, loss), window, compute_data_type)

    def _operation(self, kind: str, inputs: tuple[Tensor, Tensor], window: dict[str, list[int]], real: Any) -> Tensor:
        assert real is data_type.FLOAT
        self.kind, self.inputs, self.result = kind, inputs, Tensor()
        self.pad, self.strides, self.dilation = (window[name] for name in ("padding", "stride", "dilation"))
        return self.result

    def _step(self, after: str, name: str) -> None:
        assert self.done == after, f"{name} after {self.done}"
        self.done = name

    def validate(self) -> None:
        self._step("", "validate")
        assert self.result.output
        assert [tensor.uid for tensor in (*self.inputs, self.result)] == [1, 2, 3]
        first, second, result = (tensor.dim for tensor in (*self.inputs, self.result))
        x, w, y = {"forward": (first, second, result), "data": (result, second, first), "weight": (first, result, second)}[
            self.kind
        ]
        for n, k, p, s, d, o in zip(x[2:], w[2:], self.pad, self.strides, self.dilation, y[2:], strict=True):
            assert o == (n + 2 * p - (d * (k - 1) + 1)) // s + 1
        assert x[0] == y[0] and w[0] == y[1] and x[1] % w[1] == 0 and w[0] % (x[1] // w[1]) == 0

    def build_operation_graph(self) -> None:
        self._step("validate", "build_operation_graph")

    def create_execution_plans(self, heuristics: list[Any]) -> None:
        self._step("build_operation_graph", "create_execution_plans")
        assert heuristics == [heur_mode.A, heur_mode.FALLBACK]
        self.engines = list(self.module.engines)

    def deselect_numeric_notes(self, notes: list[Any]) -> None:
        self._deselect(lambda engine: set(engine.notes) & set(notes))

    def deselect_behavior_notes(self, notes: list[Any]) -> None:
        self._deselect(lambda engine: set(engine.notes) & set(notes))

    def deselect_workspace_greater_than(self, workspace_limit: int) -> None:
        self._deselect(lambda engine: engine.workspace > workspace_limit)

    def _deselect(self, wrong: Any) -> None:
        assert self.done == "create_execution_plans"
        self.engines = [engine for engine in self.engines if not wrong(engine)]

    def check_support(self) -> None:
        self._step("create_execution_plans", "check_support")
        if not self.engines:
            raise cudnnGraphNotSupportedError("No valid engine configs")

    def build_plans(self) -> None:
        self._step("check_support", "build_plans")
        self.built = self.engines[0]
        self.module.plans.append((self.kind, self.built.name))

    def get_workspace_size(self) -> int:
        assert self.built is not None
        return self.built.workspace

    def execute(self, tensor_dict: dict[int, int], workspace: int | None = None, handle: Any = None) -> None:
        assert self.built is not None and handle is self.handle
        self.module.runs.append((self.kind, handle.number, handle.stream, workspace))
        arrays = [tensor.array(tensor_dict[tensor.uid]) for tensor in (*self.inputs, self.result)]

        def compute(_: int | None) -> None:
            self._compute(*arrays)
            if self.built.workspace:  # type: ignore[union-attr]
                ctypes.memset(workspace, 0xFF, self.built.workspace)  # type: ignore[arg-type,union-attr]

        assert handle.busy.acquire(blocking=False), "two threads use a handle at once"
        try:
            stream, capturing, driver = ctypes.c_void_p(handle.stream), ctypes.c_int(), ctypes.CDLL("libcuda.so.1")
            assert driver.cuStreamIsCapturing(stream, ctypes.byref(capturing)) == 0
            if capturing.value and self.module.captured:
                self.module.jobs.append(HOST_FUNCTION(compute))  # kept: the graph runs it again and again
                assert driver.cuLaunchHostFunc(stream, self.module.jobs[-1], None) == 0
            else:
                assert driver.cuStreamSynchronize(stream) == 0
                compute(None)
        finally:
            handle.busy.release()

    def _compute(self, first: np.ndarray, second: np.ndarray, result: np.ndarray) -> None:
        a, b = (tf32(array) if self.built.name == "tf32" else array for array in (first, second))  # type: ignore[union-attr]
        window = self.pad, self.strides, self.dilation
        computed = {"forward": forward, "data": data_gradient, "weight": weight_gradient}[self.kind]
        result[...] = computed(a.astype(np.float64), b.astype(np.float64), result.shape, *window) * self.built.factor  # type: ignore[union-attr]


def tf32(array: np.ndarray) -> np.ndarray:
    """float32 rounded to 10 bits of mantissa."""
    bits = array.view(np.uint32)
    return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def taps(shape: Any, kernel: Any, y: Any, pad: Any, stride: Any, dilation: Any) -> Any:
    """Zeros like x with its padding, the view of x in it, and for each tap its place in the kernel and the pixels it meets."""
    padded = np.zeros((*shape[:2], *(n + 2 * p for n, p in zip(shape[2:], pad))))
    inside = padded[:, :, pad[0] : padded.shape[2] - pad[0], pad[1] : padded.shape[3] - pad[1]]

    def meets(place: tuple[int, int]) -> np.ndarray:
        rows, columns = (slice(k * d, k * d + (o - 1) * s + 1, s) for k, d, o, s in zip(place, dilation, y[2:], stride))
        return padded[:, :, rows, columns]

    return inside, [(place, meets(place)) for place in np.ndindex(*kernel[2:])]


def groups(maps: np.ndarray, count: int) -> np.ndarray:
    """(N, C, ...) as (N, groups, C / groups, ...)."""
    return maps.reshape(len(maps), count, -1, *maps.shape[2:])


def forward(x: np.ndarray, weight: np.ndarray, shape: Any, *window: Any) -> np.ndarray:
    inside, places = taps(x.shape, weight.shape, shape, *window)
    inside[...] = x
    count, y = x.shape[1] // weight.shape[1], np.zeros(shape)
    for (i, j), pixels in places:
        of_tap = weight[:, :, i, j].reshape(count, -1, weight.shape[1])
        y += np.einsum("ngchw,gmc->ngmhw", groups(pixels, count), of_tap).reshape(shape)
    return y


def data_gradient(dy: np.ndarray, weight: np.ndarray, shape: Any, *window: Any) -> np.ndarray:
    inside, places = taps(shape, weight.shape, dy.shape, *window)
    count = shape[1] // weight.shape[1]
    for (i, j), pixels in places:
        of_tap = weight[:, :, i, j].reshape(count, -1, weight.shape[1])
        pixels += np.einsum("ngmhw,gmc->ngchw", groups(dy, count), of_tap).reshape(pixels.shape)
    return inside


def weight_gradient(x: np.ndarray, dy: np.ndarray, shape: Any, *window: Any) -> np.ndarray:
    inside, places = taps(x.shape, shape, dy.shape, *window)
    inside[...] = x
    count, dweight = x.shape[1] // shape[1], np.zeros(shape)
    for (i, j), pixels in places:
        of_tap = np.einsum("ngchw,ngmhw->gmc", groups(pixels, count), groups(dy, count))
        dweight[:, :, i, j] = of_tap.reshape(shape[:2])
    return dweight


class StandIn(ModuleType):
    """The module cudnn, and what was asked of it: plans as (kind, engine), runs as (kind, handle, stream, workspace)."""

    data_type, heur_mode, behavior_note, numerical_note = data_type, heur_mode, behavior_note, numerical_note
    build_plan_policy, cudnnGraphNotSupportedError = build_plan_policy, cudnnGraphNotSupportedError
    pygraph, Handle, Tensor = pygraph, Handle, Tensor

    def __init__(self) -> None:
        super().__init__("cudnn")
        self.__version__ = "1.32.0"
        self.engines = ENGINES
        self.made, self.plans, self.runs, self.jobs = 0, [], [], []
        self.captured = False  # in several threads the driver would wait for the GIL, and the GIL's holder for the driver

    def backend_version_string(self) -> str:
        return "9.28.1"

    def create_handle(self) -> Handle:
        self.made += 1
        return Handle(self.made)

    def set_stream(self, handle: Handle, stream: int) -> None:
        handle.stream = stream


def installed(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Install the stand-in. Skips on a GPU, whose memory it cannot read."""
    skip_on_gpu("the stand-in needs a device whose memory is the host's")
    stand_in = StandIn()
    monkeypatch.delenv(cudnn.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "cudnn", stand_in)
    monkeypatch.setattr(cudnn, "_load_companions", lambda: None)
    monkeypatch.setattr(convolution, "_better_as_product", lambda kind, maps, tf32: False)  # as those of tests are
    monkeypatch.setattr(cudnn, "_state", cudnn._State())
    return stand_in
