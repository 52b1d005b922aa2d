"""The GPU: context, streams, memory, kernels. The one place that imports PyCUDA, and only when a GPU is asked for.

    set_mode_gpu -> current() -> Device: the primary context, which other CUDA libraries of the process use too
    Net.forward  -> device.running(stream): launches go to the net's own stream; one synchronisation at the end
    layer        -> launch("roi_pooling.roi_pool", dtype, count, x, rois, ...): compiled at first use, once a dtype

Memory comes from pools (pool.py): what a blob gives back is used again without asking the driver.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import math
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from minicaffe.errors import DeviceError, Error
from minicaffe.files import replacing

from . import source
from .pool import Pool

THREADS = 256
"""Threads of a block where a kernel does not ask for another number."""

MOST_BLOCKS = 2**20
"""Blocks of a one-dimensional launch: kernels loop over what is beyond (see LOOP in common.cuh)."""

CHECKS = 1024
"""Most checks (see Stream.watch) between two synchronisations."""


@dataclass
class Transfers:
    """Bytes copied between host and device since the start (or since they were set to 0)."""

    to_device: int = 0
    to_host: int = 0

    def reset(self) -> None:
        """Count from 0 again."""
        self.to_device = self.to_host = 0


class DeviceMemory:
    """Bytes on a device, zeroed; they go back to its pool with the last reference to this object. nbytes: how many serve."""

    __slots__ = ("_block", "_pool", "address", "device", "nbytes")

    def __init__(self, device: Device, pool: Pool, nbytes: int) -> None:
        self.device, self._pool = device, pool
        self.nbytes, self._block = pool.take(nbytes)
        self.address = int(self._block)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._pool.give(self.nbytes, self._block)


class PinnedMemory:
    """Page-locked memory of the host, as NumPy takes it over; back to its pool with the last array that lies in it."""

    def __init__(self, pool: Pool, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._pool = pool
        self._size, self._block = pool.take(math.prod(shape) * dtype.itemsize)
        self.__array_interface__ = {**self._block.__array_interface__, "shape": shape, "typestr": dtype.str}

    def __del__(self) -> None:
        if hasattr(self, "_block"):
            self._pool.give(self._size, self._block)


class Spares:
    """Streams or events that are used again: PyCUDA can destroy one only where its context is current."""

    def __init__(self, device: Device, make: Callable[[], Any]) -> None:
        self._device, self._make = device, make
        self._unused: deque[Any] = deque()

    def take(self) -> Any:
        """An unused one, or a new one."""
        try:
            return self._unused.pop()
        except IndexError:
            with self._device.active():
                return self._make()

    def give(self, used: Any) -> None:
        """Take one back, on any thread, at any moment."""
        self._unused.append(used)


class Device:
    """One GPU. Raises DeviceError where PyCUDA, the driver or the device is missing, and says which."""

    def __init__(self, ordinal: int) -> None:
        self.driver = driver()
        count = self.driver.Device.count()
        if not 0 <= ordinal < count:
            raise DeviceError(f"there is no GPU {ordinal}: the driver shows {count} (0 to {count - 1})")
        handle = self.driver.Device(ordinal)
        self.ordinal, self.name = ordinal, str(handle.name())
        self.capability: tuple[int, int] = handle.compute_capability()
        self.transfers = Transfers()
        with said(f"{self.name} cannot be used"):
            self._context = handle.retain_primary_context()
        self._functions: dict[tuple[str, str, np.dtype[Any]], Any] = {}
        self._modules: dict[tuple[str, np.dtype[Any]], Any] = {}
        self._lock = threading.RLock()
        full = self.driver.MemoryError
        exact = bool(os.environ.get("MINICAFFE_EXACT_MEMORY"))
        self._pool = Pool(self.driver.mem_alloc, full, self.driver.Context.synchronize, exact)
        self._pinned = Pool(lambda nbytes: self.driver.pagelocked_empty(nbytes, np.uint8), full)
        self.spare_streams = Spares(self, self.driver.Stream)
        self.spare_events = Spares(self, self.driver.Event)
        self.stream = Stream(self)
        atexit.register(self.release_memory)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the device's context the calling thread's for a while; PyCUDA's errors come out as DeviceErrors."""
        before = _local.device
        try:
            if before is not self:
                self._context.push()
                _local.device = self
            yield
        except self.driver.Error as error:
            raise DeviceError(f"{self.name}: {error}") from error
        finally:
            if before is not self and _local.device is self:
                _local.device = before
                self._context.pop()

    @contextmanager
    def running(self, stream: Stream) -> Iterator[None]:
        """Send the calling thread's launches to stream; at the end wait for it and raise what its checks found."""
        before = _local.stream
        with self.active():
            _local.stream = stream
            try:
                yield
                stream.synchronize()
            except BaseException:
                stream.forget_checks()
                raise
            finally:
                _local.stream = before

    @property
    def current_stream(self) -> Stream:
        """The stream that launches of the calling thread go to."""
        return _local.stream if _local.stream is not None and _local.stream.device is self else self.stream

    # Memory.

    def allocate(self, nbytes: int) -> DeviceMemory:
        """nbytes of zeros. DeviceError names the bytes asked for and those free."""
        with self.active(), self._lock:
            try:
                memory = DeviceMemory(self, self._pool, nbytes)
            except self.driver.MemoryError:
                free, total = self.driver.mem_get_info()
                raise DeviceError(
                    f"out of memory on {self.name}: {nbytes} bytes asked for, {free} of {total} bytes are free"
                ) from None
            self.zero(memory.address, nbytes)
            return memory

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
        """Copy a contiguous array to the device; the array may be changed as soon as this returns."""
        if array.nbytes:
            with self.active():
                stream = self.current_stream.handle
                self.driver.memcpy_htod_async(to, array, stream)
                stream.synchronize()
                self.transfers.to_device += array.nbytes

    def to_host(self, array: NDArray[Any], address: int, stream: Stream | None = None) -> None:
        """Wait for stream (default the current one), raise what its checks found, and fill a contiguous array."""
        with self.active():
            stream = stream or self.current_stream
            stream.synchronize()
            if array.nbytes:
                self.driver.memcpy_dtoh_async(array, address, stream.handle)
                stream.handle.synchronize()
                self.transfers.to_host += array.nbytes

    def pinned(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Zeros in page-locked memory of the host, (count,): copies to and from it are faster."""
        if not count:
            return np.zeros(0, dtype)
        with self.active(), self._lock:
            try:
                array: NDArray[Any] = np.asarray(PinnedMemory(self._pinned, (count,), np.dtype(dtype)))
            except self.driver.MemoryError:
                return np.zeros(count, dtype)  # the system has no more that it may lock: ordinary memory serves
        array[...] = 0
        return array

    def release_memory(self) -> None:
        """Give the driver back what the pools hold unused."""
        with self.active(), self._lock:
            self.driver.Context.synchronize()
            self._pool.release()
            self._pinned.release()

    @property
    def bytes_held(self) -> tuple[int, int]:
        """Bytes of the device that are in use, and that wait to be used again."""
        return self._pool.in_use, self._pool.held

    # Kernels.

    def function(self, stem: str, name: str, dtype: np.dtype[Any]) -> Any:
        """The kernel `name` of cuda/<stem>.cu for REAL = dtype, prepared; compiled at first use."""
        key = stem, name, dtype
        if key not in self._functions:
            kinds = source.signatures(stem)
            if name not in kinds:
                raise DeviceError(f"cuda/{stem}.cu has no kernel {name}; it has {', '.join(kinds)}")
            function = self._module(stem, dtype).get_function(name)
            real = "f" if dtype == np.float32 else "d"
            function.prepare("".join(real if kind == "REAL" else kind for kind in kinds[name]))
            self._functions[key] = function
        return self._functions[key]

    def _module(self, stem: str, dtype: np.dtype[Any]) -> Any:
        with self.active(), self._lock:
            if (stem, dtype) not in self._modules:
                image = compiled(stem, dtype, self.capability)
                with said(f"loading cuda/{stem}.cu on {self.name}"):
                    self._modules[stem, dtype] = self.driver.module_from_buffer(image)
            return self._modules[stem, dtype]


class Stream:
    """An ordered queue of launches and copies, and the checks that its kernels make on their input."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._watchers: list[Callable[[int], Error]] = []
        self.handle = device.spare_streams.take()
        self._flags: DeviceMemory | None = None
        self._workspace: DeviceMemory | None = None

    def workspace(self, nbytes: int) -> int:
        """The address of nbytes for what a layer needs until its next launches are done; what lay there before is lost.
        One for all layers: the stream keeps their launches in order."""
        if self._workspace is None or self._workspace.nbytes < nbytes:
            self._workspace = None
            self._workspace = self.device.allocate(nbytes)
        return self._workspace.address

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.device.spare_streams.give(self.handle)

    def watch(self, error: Callable[[int], Error]) -> int:
        """The address of an int, 0, that a kernel may set. If it did, the next synchronisation raises error(value)."""
        if len(self._watchers) == CHECKS:
            self.synchronize()
        if self._flags is None:
            self._flags = self.device.allocate(4 * CHECKS)
            self._found = self.device.pinned(CHECKS, np.int32)
        self._watchers.append(error)
        return self._flags.address + 4 * (len(self._watchers) - 1)

    def synchronize(self) -> None:
        """Wait until all that was sent is done, then raise the first error that a check found."""
        with self.device.active():
            watchers, self._watchers = self._watchers, []
            if watchers and self._flags is not None:
                found = self._found[: len(watchers)]
                self.device.driver.memcpy_dtoh_async(found, self._flags.address, self.handle)
                self.device.driver.memset_d8_async(self._flags.address, 0, found.nbytes, self.handle)
                self.device.transfers.to_host += found.nbytes
            self.handle.synchronize()
            for watcher, value in zip(watchers, self._found.tolist() if watchers else ()):
                if value:
                    raise watcher(value)

    def forget_checks(self) -> None:
        """Wait, and drop what the checks found: another error is on its way."""
        self._watchers.clear()
        with suppress(DeviceError), self.device.active():
            if self._flags is not None:
                self.device.zero(self._flags.address, self._flags.nbytes)
            self.handle.synchronize()


class Stopwatch:
    """The device's own time between two points of the current stream, by events."""

    def __init__(self, device: Device) -> None:
        self._device, self._stream = device, device.current_stream
        self._first, self._last = device.spare_events.take(), device.spare_events.take()
        with device.active():
            self._first.record(self._stream.handle)

    def __del__(self) -> None:
        if hasattr(self, "_last"):
            self._device.spare_events.give(self._first)
            self._device.spare_events.give(self._last)

    def stop(self) -> None:
        """The second point."""
        with self._device.active():
            self._last.record(self._stream.handle)

    def milliseconds(self) -> float:
        """Waits for the second point. NaN on a device that has no clock."""
        with self._device.active():
            self._last.synchronize()
            return float(self._first.time_till(self._last))


class _Local(threading.local):
    device: Device | None = None
    stream: Stream | None = None
    ordinal: int | None = None


_local = _Local()
_devices: dict[int, Device] = {}
_ordinal: int | None = None


@dataclass(frozen=True)
class Gpu:
    """What the driver says of a GPU; memory in bytes."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    memory: int

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.ordinal}: {self.name}, compute capability {major}.{minor}, {self.memory / 2**30:.1f} GiB"


def installed_gpus() -> list[Gpu]:
    """The GPUs that the driver shows. DeviceError where PyCUDA or the driver is missing."""
    cuda = driver()
    gpus = [cuda.Device(i) for i in range(cuda.Device.count())]
    return [Gpu(i, str(gpu.name()), gpu.compute_capability(), gpu.total_memory()) for i, gpu in enumerate(gpus)]


def driver() -> Any:
    """pycuda.driver, initialised. DeviceError says what is missing."""
    try:
        module = importlib.import_module("pycuda.driver")
        module.init()
    except ModuleNotFoundError as error:
        missing = "PyCUDA is" if (error.name or "").startswith("pycuda") else f"PyCUDA's module {error.name} is"
        raise DeviceError(
            f'no GPU: {missing} not installed (pip install "minicaffe[gpu]"); `minicaffe doctor` says more'
        ) from error
    except ImportError as error:
        raise DeviceError(f"no GPU: PyCUDA finds no NVIDIA driver ({error}); `minicaffe doctor` says more") from error
    except Exception as error:  # pycuda's own errors, which cannot be named before the import
        raise DeviceError(f"no GPU: the NVIDIA driver says: {error}; `minicaffe doctor` says more") from error
    return module


def choose(ordinal: int) -> None:
    """Let current() be this GPU. DeviceError where there is none of this number."""
    global _ordinal
    _device(ordinal)
    _ordinal = ordinal


def is_chosen() -> bool:
    """Whether a GPU was chosen by its number."""
    return _ordinal is not None


def current() -> Device:
    """The GPU in use: 0, or the one that was chosen. DeviceError where there is none."""
    return _device((_ordinal or 0) if _local.ordinal is None else _local.ordinal)


def _device(ordinal: int) -> Device:
    if ordinal not in _devices:
        _devices[ordinal] = Device(ordinal)
    return _devices[ordinal]


@contextmanager
def chosen(ordinal: int) -> Iterator[Device]:
    """Let current() be this GPU in the calling thread for a while."""
    device = _device(ordinal)
    before, _local.ordinal = _local.ordinal, ordinal
    try:
        yield device
    finally:
        _local.ordinal = before


@contextmanager
def said(what: str) -> Iterator[None]:
    """PyCUDA's errors as DeviceErrors."""
    try:
        yield
    except driver().Error as error:
        raise DeviceError(f"{what}: {error}") from error


def launch(kernel: str, dtype: DTypeLike, threads: int, *arguments: Any) -> None:
    """Run a one-dimensional kernel, "stem.name", whose loop covers `threads` items (none: nothing runs)."""
    if threads:
        blocks = min(-(-threads // THREADS), MOST_BLOCKS)
        launch_blocks(kernel, dtype, (blocks, 1), (THREADS, 1, 1), *arguments)


def launch_blocks(kernel: str, dtype: DTypeLike, grid: tuple[int, int], block: tuple[int, int, int], *arguments: Any) -> None:
    """Run the kernel "stem.name" compiled for REAL = dtype. Pointers are addresses (int); no synchronisation."""
    if not all(grid):
        return
    device = current()
    stem, _, name = kernel.partition(".")
    with device.active():
        function = device.function(stem, name, np.dtype(dtype))
        try:
            function.prepared_async_call(grid, block, device.current_stream.handle, *arguments)
        except device.driver.Error as error:
            raise DeviceError(f"kernel {kernel}, grid {grid}, block {block}: {error}") from error


def compiled(stem: str, dtype: np.dtype[Any], capability: tuple[int, int]) -> Any:
    """cuda/<stem>.cu as machine code, by nvcc where there is one, otherwise by NVRTC. Both without fused multiply-add:
    a rounding more or less moves a bin's edge. DeviceError with the compiler's words, which name file and line."""
    real = "float" if dtype == np.float32 else "double"
    nvcc = find_nvcc()
    if nvcc is None:
        return _by_nvrtc(stem, real, capability)
    compiler = importlib.import_module("pycuda.compiler")
    arch = "sm_{}{}".format(*capability)
    try:
        return compiler.compile(
            source.text(stem), nvcc=nvcc, options=[f"-DREAL={real}", "-fmad=false"], arch=arch, no_extern_c=True
        )
    except driver().CompileError as error:
        raise DeviceError(f"cuda/{stem}.cu does not compile for REAL = {real}, {arch}:\n{error.stderr.strip()}") from error


def find_nvcc() -> str | None:
    """The nvcc that compiles: the environment's MINICAFFE_NVCC, the one on the PATH, or the toolkit's."""
    given = os.environ.get("MINICAFFE_NVCC") or shutil.which("nvcc")
    if given:
        return given
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        path = Path(os.environ.get(variable) or "/usr/local/cuda") / "bin" / "nvcc"
        if path.is_file():
            return str(path)
    return None


def nvrtc_version() -> str:
    """NVRTC's version. DeviceError where it, or cuda.core, by way of which it compiles, is not installed."""
    advice = 'pip install "minicaffe[gpu-cu13]", or cuda-core, cuda-bindings and nvidia-cuda-nvrtc'
    try:
        importlib.import_module("cuda.core")
        _, major, minor = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except ImportError as error:
        raise DeviceError(f"no compiler for the kernels: neither nvcc (the CUDA toolkit) nor NVRTC ({advice})") from error
    except RuntimeError as error:  # cuda.bindings finds no libnvrtc
        raise DeviceError(f"no compiler for the kernels: no nvcc, and NVRTC does not load ({advice}): {error}") from error
    return f"{major}.{minor}"


def _by_nvrtc(stem: str, real: str, capability: tuple[int, int]) -> Any:
    """cuda/<stem>.cu as machine code by NVRTC, through cuda.core; what it made is kept in the user's cache folder."""
    version, text, arch = nvrtc_version(), source.text(stem), "sm_{}{}".format(*capability)
    folder: Path = importlib.import_module("platformdirs").user_cache_path("minicaffe")  # PyCUDA brings platformdirs
    kept = folder / f"{hashlib.sha256(repr((version, real, arch, text)).encode()).hexdigest()}.cubin"
    with suppress(OSError):
        return kept.read_bytes()
    core = importlib.import_module("cuda.core")
    options = core.ProgramOptions(std="c++17", arch=arch, define_macro=("REAL", real), fma=False)
    try:
        code: bytes = core.Program(text, "c++", options).compile("cubin").code
    except Exception as error:  # cuda.core's errors have no common class
        message = str(error).rstrip("\0\n ")
        raise DeviceError(f"cuda/{stem}.cu does not compile for REAL = {real}, {arch}:\n{message}") from error
    with suppress(OSError):  # without a place to keep it, it is compiled every time
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as path:
            path.write_bytes(code)
    return code
