"""CUDA graphs: launches, fills and copies, captured once (capture.py) and run again with one driver call.

    with device.capturing(stream) as capture: ...      nothing runs
    graph = Graph(capture)                             holds the memory that its launches use
    graph.launch()                                     all of it, on the same stream

cuda.bindings calls the driver, on the handle of PyCUDA's stream; PyCUDA has no graphs. Without cuda.bindings there are none.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minicaffe.errors import DeviceError, install

from .capture import Capture

if TYPE_CHECKING:
    from .stream import Stream

logger = logging.getLogger("minicaffe.cuda")

VARIABLE = "MINICAFFE_CUDA_GRAPHS"


@dataclass
class _State:
    allowed: bool = field(default_factory=lambda: os.environ.get(VARIABLE, "1") != "0")
    tried: bool = False
    bindings: Any = None
    settings: int = 0
    unused: deque[Any] = field(default_factory=deque)


_state = _State()


def allow_graphs(allowed: bool = True) -> None:
    """Allow or forbid nets to run as CUDA graphs. On by default, unless the environment has MINICAFFE_CUDA_GRAPHS=0."""
    _state.allowed = allowed


def settings() -> int:
    """Return a number that each settings_changed changes. Graphs captured under another number are invalid."""
    return _state.settings


def settings_changed() -> None:
    """Invalidate the captured graphs. Call after a change in a library or a switch that decides a layer's launches."""
    _state.settings += 1


def allowed() -> bool:
    """Return whether nets may run as CUDA graphs."""
    return _state.allowed


def available() -> bool:
    """Return whether graphs are allowed, and cuda.bindings is installed."""
    return _state.allowed and driver() is not None


def driver() -> Any:
    """Return cuda.bindings.driver, looked up once; None, with a line in the log, if it is missing."""
    if not _state.tried:
        try:
            _state.bindings = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            logger.info("no CUDA graphs: %s (%s)", error, install("gpu-cu13"))
        _state.tried = True
    return _state.bindings


def begin(stream: Stream) -> None:
    """Begin the driver's capture of the stream. Only this thread's calls then count as the capture's."""
    bindings = driver()
    while _state.unused:  # here, where a context is current and no capture is disturbed
        bindings.cuGraphExecDestroy(_state.unused.popleft())
    mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    _call("cuStreamBeginCapture", stream.handle.handle, mode)


def end(stream: Stream) -> Any:
    """End the capture, and return the driver's graph of the stream's work since begin.

    Raises DeviceError for an invalid capture, which is ended too.
    """
    return _call("cuStreamEndCapture", stream.handle.handle)


@contextmanager
def beside_capture() -> Iterator[None]:
    """Let the calling thread allocate driver memory during its capture, as a context manager.

    The graph uses this memory, and does not allocate it.
    """
    mode = _call("cuThreadExchangeStreamCaptureMode", driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        _call("cuThreadExchangeStreamCaptureMode", mode)


def abandon(stream: Stream) -> None:
    """End a capture, valid or not, and release what it holds."""
    with suppress(DeviceError):
        _call("cuGraphDestroy", end(stream))


def _call(name: str, *arguments: Any) -> Any:
    bindings = driver()
    status, *results = getattr(bindings, name)(*arguments)
    if status != bindings.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"{name} failed: {status.name}")
    return results[0] if results else None


class Graph:
    """The work of a capture, to be launched on its stream. nodes: the number of operations."""

    def __init__(self, capture: Capture, graph: Any) -> None:
        self._stream, self._watchers, self._found = capture.stream, capture.watchers, capture.found
        self._held = capture.pool, capture.held
        try:
            self.nodes = int(driver().cuGraphGetNodes(graph)[2])
            self._executable = _call("cuGraphInstantiate", graph, 0)
        finally:
            _call("cuGraphDestroy", graph)

    def launch(self) -> None:
        """Launch the graph. Raises DeviceError if the driver refuses."""
        _call("cuGraphLaunch", self._executable, self._stream.handle.handle)
        self._stream.checked(self._watchers, self._found)

    def __del__(self) -> None:
        if hasattr(self, "_executable"):
            _state.unused.append(self._executable)  # no driver call: this may be any thread, even during a capture
