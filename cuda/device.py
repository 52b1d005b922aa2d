"""A GPU: its context, memory and launches; and the choice of each thread's GPU.

    set_mode_gpu -> current() -> Device: the primary context, which other CUDA libraries of the process use too
    Net.forward  -> device.running(stream): launches go to the net's stream (stream.py); one synchronisation at the end
    layer        -> launch("roi_pooling.pool", dtype, count, x, rois, ...): compiled at its first use (compile.py)

Memory comes from pools (pool.py): freed blocks are used again without asking the driver. The only module that imports PyCUDA,
and only when a GPU is asked for.
"""

from __future__ import annotations

import atexit
import importlib
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from minicaffe.errors import DeviceError, install
from minicaffe.process_fork import renewed

from . import capture, graph
from .capture import Capture
from .compile import Kernels
from .pool import DeviceMemory, Lent, PinnedMemory, Pool
from .stream import Spares, Stream

THREADS = 256
"""Threads of a block, unless a kernel needs another number."""

MOST_BLOCKS = 2**20
"""Most blocks of a one-dimensional launch: kernels loop over the rest (see LOOP in common.cuh)."""


@dataclass
class Transfers:
    """The bytes copied between host and device since the start, or since the last reset."""

    to_device: int = 0
    to_host: int = 0

    def reset(self) -> None:
        """Count from 0 again."""
        self.to_device = self.to_host = 0


class Device:
    """One GPU. Raises DeviceError if PyCUDA, the driver or the device is missing."""

    def __init__(self, ordinal: int) -> None:
        self.driver = driver()
        count = self.driver.Device.count()
        if not 0 <= ordinal < count:
            raise DeviceError(f"there is no GPU {ordinal}: the driver shows {count}, numbered from 0")
        handle = self.driver.Device(ordinal)
        self.ordinal, self.name = ordinal, str(handle.name())
        self.transfers = Transfers()
        try:
            self._context = handle.retain_primary_context()
        except self.driver.Error as error:
            raise DeviceError(f"{self.name} cannot be used: {error}") from error
        self.kernels = Kernels(self.driver, self.name, handle.compute_capability())
        self._lock = renewed(threading.RLock())
        full = self.driver.MemoryError
        self.exact = bool(os.environ.get("MINICAFFE_EXACT_MEMORY"))
        settle = self.driver.Context.synchronize
        self._pool = Pool(self.driver.mem_alloc, full, order=self.order, settle=settle, exact=self.exact)
        self.graph_holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pinned = Pool(lambda nbytes: self.driver.pagelocked_empty(nbytes, np.uint8), full)
        self.spare_streams = Spares(self, self.driver.Stream)
        self.spare_events = Spares(self, self.driver.Event)
        self.stream = Stream(self)
        atexit.register(self._leave)  # before exit, while the context can still be made current

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the device's context current in the calling thread, as a context manager.

        PyCUDA's errors become DeviceErrors.
        """
        before, running = _local.device, _local.running
        try:
            if before is not self:
                self._context.push()
                _local.device, _local.running = self, None
            yield
        except self.driver.Error as error:
            raise DeviceError(f"{self.name}: {error}") from error
        finally:
            if before is not self and _local.device is self:  # false if push failed
                _local.device, _local.running = before, running
                self._context.pop()

    @contextmanager
    def running(self, stream: Stream) -> Iterator[None]:
        """Send the calling thread's launches to stream. At the end wait for it and raise the error of a check."""
        before = _local.stream
        with self.active():
            running, _local.running = _local.running, stream if current() is self else None
            _local.stream = stream
            try:
                yield
                stream.synchronize()
            except BaseException:
                stream.forget_checks()  # otherwise the next wait would raise this run's finding
                raise
            finally:
                _local.stream, _local.running = before, running

    @property
    def current_stream(self) -> Stream:
        """Return the stream of the calling thread's launches."""
        return _local.stream if _local.stream is not None and _local.stream.device is self else self.stream

    def order(self, handle: Any, other: Any) -> None:
        """Let the driver's stream `handle` wait for the work that `other` has so far. The host does not wait.

        The device must be current.
        """
        capture.refuse_for_now("a wait for another stream")
        event = self.spare_events.take()
        event.record(other)
        handle.wait_for_event(event)  # the wait refers to this record, so the event may be recorded again at once
        self.spare_events.give(event)

    # Memory.

    def allocate(self, nbytes: int, stream: Stream | None = None) -> DeviceMemory:
        """Return uninitialised memory of nbytes, for a stream (default: the current one).

        Raises DeviceError, with the requested and the free bytes, if memory is full.
        """
        with self.active(), self._lock:
            stream = stream or self.current_stream
            if stream.capture is not None:
                return DeviceMemory(self, stream.capture.pool, nbytes, stream.handle)
            try:
                return DeviceMemory(self, self._pool, nbytes, stream.handle)
            except self.driver.MemoryError:
                for holder in list(self.graph_holders):  # a graph only saves time
                    holder.drop()
            try:
                return DeviceMemory(self, self._pool, nbytes, stream.handle)
            except self.driver.MemoryError:
                free, total = self.driver.mem_get_info()
                raise DeviceError(
                    f"out of memory on {self.name}: {nbytes} bytes requested, {free} of {total} bytes are free"
                ) from None

    @property
    def reserved(self) -> int:
        """Return the bytes of the device's memory in the pool, used or free."""
        return self._pool.in_use + self._pool.held

    def lend(self, size: int, stream: Stream) -> Lent:
        """Return a block from the pool for a capture of stream.

        Raises NotCapturedError if memory is full: unused blocks cannot be freed during a capture.
        """
        try:
            with graph.beside_capture():
                return self._pool.lend(size, stream.handle)
        except self.driver.MemoryError:
            raise capture.NotCapturedError(f"no {size} bytes are free") from None

    @contextmanager
    def capturing(self, stream: Stream) -> Iterator[Capture]:
        """Capture the calling thread's work on stream, its current one.

        Meanwhile other threads get no memory: freeing blocks of a full pool would spoil the capture. An exception ends the
        capture.
        """
        with self.active(), self._lock:
            made = Capture(stream)
            graph.begin(stream)
            running, _local.running = _local.running, None  # fast paths of blobs and launches do not check for a capture
            made.begin()
            try:
                yield made
                if made.refused:  # and its error did not arrive here
                    made.refuse(made.refused)
                made.fetch_checks()
            except BaseException:
                graph.abandon(stream)
                raise
            else:
                made.graph = graph.Graph(made, graph.end(stream))
            finally:
                made.end()
                _local.running = running

    def zero(self, address: int, nbytes: int) -> None:
        """Set bytes of the device to 0, on the current stream."""
        if nbytes:
            with self.active():
                self.driver.memset_d8_async(address, 0, nbytes, self.current_stream.handle)

    def copy(self, to: int, address: int, nbytes: int) -> None:
        """Copy bytes within the device, on the current stream."""
        if nbytes:
            with self.active():
                self.driver.memcpy_dtod_async(to, address, nbytes, self.current_stream.handle)

    def to_device(self, to: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to the device. The array may be changed as soon as this returns."""
        if array.nbytes:
            capture.refuse("a copy from the host")
            with self.active():
                stream = self.current_stream.handle
                self.driver.memcpy_htod_async(to, array, stream)
                stream.synchronize()
                self.transfers.to_device += array.nbytes

    def to_host(self, array: NDArray[Any], address: int) -> None:
        """Wait for the current stream, raise the error of a check, and fill a contiguous array."""
        with self.active():
            stream = self.current_stream
            stream.synchronize()
            if array.nbytes:
                self.driver.memcpy_dtoh_async(array, address, stream.handle)
                stream.handle.synchronize()
                self.transfers.to_host += array.nbytes

    def fetch(self, address: int, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array (count,) that the current stream will fill. Read it after waiting for the stream."""
        capture.refuse("a copy to the host")
        array = self.pinned(count, dtype)
        if count:
            with self.active():
                stream = self.current_stream
                stream.fills(array)
                self.driver.memcpy_dtoh_async(array, address, stream.handle)
                self.transfers.to_host += array.nbytes
        return array

    def pinned(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return zeros (count,) in page-locked host memory, from and to which copies are faster."""
        if not count:
            return np.zeros(0, dtype)
        capture.refuse("memory of the host")
        with self.active(), self._lock:
            try:
                array: NDArray[Any] = np.asarray(PinnedMemory(self._pinned, (count,), np.dtype(dtype)))
            except self.driver.MemoryError:
                return np.zeros(count, dtype)  # the system cannot lock more pages; ordinary memory also works
        array[...] = 0
        return array

    def release_memory(self) -> None:
        """Return the pools' unused memory to the driver."""
        with self.active(), self._lock:
            self._pool.release()
            self._pinned.release()

    def _leave(self) -> None:
        try:
            with self.active():
                self.driver.Context.synchronize()
            self.release_memory()
        except DeviceError:  # every call fails now, and the driver frees all memory anyway
            with suppress(self.driver.Error):
                self._context.detach()  # otherwise PyCUDA warns for each block and kernel that it cannot free


class _Local(threading.local):
    device: Device | None = None
    """The device whose context is current."""
    stream: Stream | None = None
    """The stream of the innermost Device.running."""
    running: Stream | None = None
    """The device's current stream, while the device is current in every sense. Launches then need not look for it."""
    ordinal: int | None = None


_local = _Local()
_devices: dict[int, Device] = {}
_ordinal: int | None = None


@dataclass(frozen=True)
class Gpu:
    """The driver's report of a GPU. Memory is in bytes."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    memory: int

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.ordinal}: {self.name}, compute capability {major}.{minor}, {self.memory / 2**30:.1f} GiB"


def installed_gpus() -> list[Gpu]:
    """Return the GPUs that the driver reports. Raises DeviceError if PyCUDA or the driver is missing."""
    cuda = driver()
    gpus = [cuda.Device(i) for i in range(cuda.Device.count())]
    return [Gpu(i, str(gpu.name()), gpu.compute_capability(), gpu.total_memory()) for i, gpu in enumerate(gpus)]


def driver() -> Any:
    """Return pycuda.driver, initialised. Raises DeviceError with what is missing."""
    try:
        module = importlib.import_module("pycuda.driver")
        module.init()
    except ModuleNotFoundError as error:
        missing = "PyCUDA is" if (error.name or "").startswith("pycuda") else f"PyCUDA's module {error.name} is"
        raise DeviceError(f"no GPU: {missing} not installed ({install('gpu')}); `minicaffe doctor` says more") from error
    except ImportError as error:
        raise DeviceError(f"no GPU: PyCUDA finds no NVIDIA driver ({error}); `minicaffe doctor` says more") from error
    except Exception as error:  # PyCUDA's errors are unknown before its import
        raise DeviceError(f"no GPU: the NVIDIA driver says: {error}; `minicaffe doctor` says more") from error
    return module


def choose(ordinal: int | None) -> None:
    """Make current() this GPU; None: no choice. Raises DeviceError if no GPU has this number."""
    global _ordinal
    if ordinal is not None:
        _device(ordinal)
    _ordinal, _local.running = ordinal, None


def is_chosen() -> bool:
    """Return whether a GPU was chosen by its number."""
    return _ordinal is not None


def current() -> Device:
    """Return the calling thread's GPU: 0, or the chosen one. Raises DeviceError if there is none."""
    return _device((_ordinal or 0) if _local.ordinal is None else _local.ordinal)


def _device(ordinal: int) -> Device:
    device = _devices.get(ordinal)
    if device is None:
        device = _devices[ordinal] = Device(ordinal)
    return device


def stream_of_pass() -> Stream | None:
    """Return the stream of the calling thread's pass on its current device, or None."""
    return _local.running


@contextmanager
def chosen(ordinal: int) -> Iterator[Device]:
    """Make current() this GPU in the calling thread, as a context manager."""
    device = _device(ordinal)
    before, running = _local.ordinal, _local.running
    _local.ordinal, _local.running = ordinal, None
    try:
        yield device
    finally:
        _local.ordinal, _local.running = before, running


def launch(kernel: str, dtype: DTypeLike, threads: int, *arguments: Any) -> None:
    """Run the one-dimensional kernel "stem.name" over `threads` items (0: nothing runs)."""
    if threads:
        blocks = min(-(-threads // THREADS), MOST_BLOCKS)
        launch_blocks(kernel, dtype, (blocks, 1), (THREADS, 1, 1), *arguments)


def launch_blocks(kernel: str, dtype: DTypeLike, grid: tuple[int, int], block: tuple[int, int, int], *arguments: Any) -> None:
    """Run the kernel "stem.name" compiled for REAL = dtype, without synchronisation. Pointers are addresses (int)."""
    if not all(grid):
        return
    stream = _local.running
    if stream is None:
        device = current()
        with device.active():
            _launch(device.current_stream, kernel, dtype, grid, block, *arguments)
    else:
        _launch(stream, kernel, dtype, grid, block, *arguments)


def _launch(
    stream: Stream, kernel: str, dtype: DTypeLike, grid: tuple[int, int], block: tuple[int, int, int], *arguments: Any
) -> None:
    kernels = stream.device.kernels
    function = kernels.bound.get((kernel, dtype)) or kernels.bind(kernel, dtype)
    try:
        function(grid, block, stream.handle, *arguments)
    except stream.device.driver.Error as error:
        raise DeviceError(f"kernel {kernel}, grid {grid}, block {block}: {error}") from error
