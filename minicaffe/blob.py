"""Blob: the n-d array pair (data, diff) that layers read and write, over lazily taken memory.

Source: Caffe's blob.hpp and syncedmem.hpp. A blob's memory is taken at first use, zeroed, and kept by reshape when
the new shape fits; two blobs may share one memory (Split, Reshape, shared weights). It moves between host and device
when the other side asks for it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import limits
from .errors import BlobError, Error
from .mode import gpu_mode

Array = NDArray[Any]

if TYPE_CHECKING:
    from .cuda.device import Device, DeviceMemory, Stream

Access = Literal["read", "write", "update"]

MAX_COUNT = 2**31 - 1
"""Most elements of one blob: Caffe's INT_MAX."""
MAX_AXES = 32
"""Most axes of one blob: Caffe's kMaxBlobAxes (NumPy 1 has 32 too, NumPy 2 has 64)."""

REPLACED = "a blob's {0} cannot be replaced, only written to: blob.{0}[...] = values (and blob.{0}[...] += values)"


class MemoryState(enum.Enum):
    """Where the current contents of a SyncedMemory are."""

    UNINITIALISED = "uninitialised"
    HOST = "host"
    DEVICE = "device"
    SYNCED = "synced"


class SyncedMemory:
    """One flat block of `size` elements that lies on the host, the device, or both; taken on first use and zeroed.

    Whoever asks for it says how many elements are in use and what for: "read" leaves the other side's copy good,
    "update" (read and write) and "write" (every element asked for is overwritten, so nothing is copied) do not.

    The device holds the first `_held` elements. The state speaks of those; what lies beyond is the host's.
    gone: why there is no memory to be had; asking is an Error.
    """

    __slots__ = ("_device", "_held", "_host", "_writer", "dtype", "gone", "pinned", "size", "state")

    def __init__(self, size: int, dtype: np.dtype[Any], pinned: bool = False, gone: str = "") -> None:
        self.size, self.dtype, self.pinned, self.gone = size, dtype, pinned, gone
        self.state = MemoryState.UNINITIALISED
        self._host: NDArray[Any] | None = None
        self._device: DeviceMemory | None = None
        self._held = 0
        self._writer: Stream | None = None

    def host(self, count: int, access: Access = "update") -> NDArray[Any]:
        """The first count elements as a writable flat array of the host."""
        if self._host is None:
            self._host = self._new_host()
        if self.state is MemoryState.DEVICE and (access != "write" or count < self._held):
            self._copy_to_host()
        if access != "read":
            self.state = MemoryState.HOST
        return self._host[:count]

    def device(self, count: int, access: Access) -> int:
        """The address of the first count elements on the device. DeviceError: out of memory; the contents are kept."""
        from .cuda.device import current

        if self.gone:
            raise Error(self.gone)
        gpu = current()
        with gpu.active():
            stream = gpu.current_stream
            if self._writer is not None and self._writer is not stream:
                self._writer.synchronize()
            memory = self._device
            if memory is None or self._held < count or memory.device is not gpu:
                memory = self._grow(gpu, count)
            if self.state is MemoryState.HOST and (access != "write" or count < self._held):
                gpu.to_device(memory.address, self.host(self._held, "read"))
                self.state, self._writer = MemoryState.SYNCED, stream
            if access != "read":
                self.state, self._writer = MemoryState.DEVICE, stream
        return memory.address

    def zero(self, count: int) -> None:
        """Set the first count elements to 0, on the device where the mode is GPU."""
        if not gpu_mode():
            self.host(count, "write")[...] = 0
        elif count:
            from .cuda.device import current

            current().zero(self.device(count, "write"), count * self.dtype.itemsize)

    def _new_host(self) -> NDArray[Any]:
        if self.gone:
            raise Error(self.gone)
        if self._device is not None or (self.pinned and gpu_mode()):
            from .cuda.device import current

            return current().pinned(self.size, self.dtype)
        return np.zeros(self.size, self.dtype)

    def _copy_to_host(self) -> None:
        memory, host = self._device, self._host
        if memory is not None and host is not None:
            memory.device.to_host(host[: self._held], memory.address, self._writer)
        self.state, self._writer = MemoryState.SYNCED, None

    def _grow(self, gpu: Device, count: int) -> DeviceMemory:
        """Take memory for count elements on gpu, with what the device, and beyond that the host, held of them."""
        if self._device is not None and self._device.device is not gpu:  # another GPU's: by way of the host
            if self.state is MemoryState.DEVICE:
                self.host(self._held, "read")
            if self.state is MemoryState.SYNCED:
                self.state = MemoryState.HOST
            self._device, self._held = None, 0
        size, old, held = self.dtype.itemsize, self._device, self._held
        memory = gpu.allocate(count * size)
        if self.state in (MemoryState.DEVICE, MemoryState.SYNCED):
            if old is not None:
                gpu.copy(memory.address, old.address, held * size)
            if self._host is not None:
                gpu.to_device(memory.address + held * size, self._host[held:count])
        self._device, self._held, self._writer = memory, count, gpu.current_stream
        return memory


@contextmanager
def only_read(memories: Iterable[SyncedMemory]) -> Iterator[None]:
    """What lies on the device of these memories stays good, although their host arrays are handed out meanwhile."""
    before = [(memory, memory.state) for memory in memories]
    try:
        yield
    finally:
        for memory, state in before:
            if state in (MemoryState.DEVICE, MemoryState.SYNCED) and memory.state is MemoryState.HOST:
                memory.state = MemoryState.SYNCED


class Blob:
    """An n-d array `data` with a `diff` of the same shape.

    data, diff: writable views (no copies) of shape `shape` and type `dtype` (float32 unless asked for float64).
    num, channels, height, width: the legacy 4-axis names; absent trailing axes count as 1.
    Raises BlobError for a negative axis, more than MAX_AXES axes or MAX_COUNT elements, and memory that cannot be shared.
    """

    __slots__ = ("_count", "_data", "_diff", "_pinned", "_shape", "dtype")

    def __init__(self, shape: Iterable[int] = (), dtype: DTypeLike = np.float32) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._shape: tuple[int, ...] = ()
        self._count = 0
        self._pinned = False
        self._data = SyncedMemory(0, self.dtype)
        self._diff = SyncedMemory(0, self.dtype)
        self.reshape(*shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self._shape

    @property
    def count(self) -> int:
        """Number of elements."""
        return self._count

    def reshape(self, *dims: int | Iterable[int]) -> None:
        """Take another shape (ints, or one sequence of them); memory is kept when the new count fits in it."""
        shape = checked_shape(dims)
        self._shape, self._count = shape, math.prod(shape)
        if self._count > self._data.size:
            self._data = SyncedMemory(self._count, self.dtype, self._pinned)
        if self._count > self._diff.size:
            self._diff = SyncedMemory(self._count, self.dtype)

    @property
    def data(self) -> NDArray[Any]:
        """The values: a writable view, of the blob's shape."""
        return self._data.host(self._count).reshape(self._shape)

    @data.setter
    def data(self, values: object) -> NoReturn:
        raise AttributeError(REPLACED.format("data"))

    @property
    def diff(self) -> NDArray[Any]:
        """The gradient: a writable view, of the blob's shape."""
        return self._diff.host(self._count).reshape(self._shape)

    @diff.setter
    def diff(self, values: object) -> NoReturn:
        raise AttributeError(REPLACED.format("diff"))

    def read_data(self) -> NDArray[Any]:
        """The values as an array that cannot be written to: the device's copy, if there is one, stays good."""
        return self._read(self._data)

    def read_diff(self) -> NDArray[Any]:
        """The gradient as an array that cannot be written to."""
        return self._read(self._diff)

    def _read(self, memory: SyncedMemory) -> NDArray[Any]:
        view = memory.host(self._count, "read").reshape(self._shape)
        view.flags.writeable = False
        return view

    def device_data(self, access: Access) -> int:
        """The address of data on the GPU, for a kernel that will "read", "write" (all of it) or "update" it. DeviceError."""
        return self._data.device(self._count, access)

    def device_diff(self, access: Access) -> int:
        """The address of diff on the GPU, for a kernel that will "read", "write" (all of it) or "update" it. DeviceError."""
        return self._diff.device(self._count, access)

    def zero_diff(self) -> None:
        """Set diff to 0, on the device where the mode is GPU."""
        self._diff.zero(self._count)

    def pin(self) -> None:
        """Take data's memory of the host, when it is taken, page-locked where a GPU is in use: for a net's inputs."""
        self._pinned = self._data.pinned = True

    def give_back(self, gone: str) -> None:
        """Let go of data's memory; reading it is an Error with this message until take_again, or a reshape."""
        self._data = SyncedMemory(0, self.dtype, self._pinned, gone)

    def take_again(self) -> None:
        """After give_back: data may take memory again."""
        if self._data.gone:
            self._data = SyncedMemory(self._count, self.dtype, self._pinned)

    @property
    def _gpu_data_ptr(self) -> int:
        """pycaffe's address of data on the GPU; counts as a write there. DeviceError without a GPU."""
        return self.device_data("update")

    @property
    def _gpu_diff_ptr(self) -> int:
        """pycaffe's address of diff on the GPU; counts as a write there. DeviceError without a GPU."""
        return self.device_diff("update")

    @property
    def data_state(self) -> MemoryState:
        """Where the present data are."""
        return self._data.state

    @property
    def diff_state(self) -> MemoryState:
        """Where the present diff is."""
        return self._diff.state

    @property
    def num(self) -> int:
        """Axis 0 of at most 4; BlobError for more."""
        return self._legacy(0)

    @property
    def channels(self) -> int:
        """Axis 1 of at most 4."""
        return self._legacy(1)

    @property
    def height(self) -> int:
        """Axis 2 of at most 4."""
        return self._legacy(2)

    @property
    def width(self) -> int:
        """Axis 3 of at most 4."""
        return self._legacy(3)

    def _legacy(self, axis: int) -> int:
        if len(self._shape) > 4:
            raise BlobError(f"num, channels, height and width need at most 4 axes; the blob has shape {self._shape}")
        return self._shape[axis] if axis < len(self._shape) else 1

    def share_data(self, other: Blob) -> None:
        """Let data be other's memory: a write through one is seen through both."""
        self._check_shareable(other)
        self._data = other._data

    def share_diff(self, other: Blob) -> None:
        """Let diff be other's memory."""
        self._check_shareable(other)
        self._diff = other._diff

    def shares_data_with(self, other: Blob) -> bool:
        """Whether data is other's memory."""
        return self._data is other._data

    def _check_shareable(self, other: Blob) -> None:
        if self._count != other._count or self.dtype != other.dtype:
            raise BlobError(f"blobs of shapes {self._shape} and {other._shape} cannot share memory")

    def __repr__(self) -> str:
        return f"Blob({' x '.join(map(str, self._shape)) or 'scalar'}, {self.dtype})"


class BlobList(list[Blob]):
    """A layer's learnable blobs; add_blob(*shape) appends one (pycaffe's BlobVec)."""

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        super().__init__()
        self.dtype = np.dtype(dtype)

    def add_blob(self, *shape: int) -> Blob:
        """Append a blob of this shape, zeros, and return it."""
        blob = Blob(shape, self.dtype)
        self.append(blob)
        return blob

    def __setitem__(self, i: Any, blob: Any) -> None:
        if isinstance(i, int | np.integer) and not isinstance(blob, Blob):
            raise TypeError(f"item {i} is a blob: write blobs[{i}].data[...] = values")
        super().__setitem__(i, blob)


def numbers(name: str, values: ArrayLike) -> NDArray[Any]:
    """values as an array; Error, which names the blob they are for, where they are no real numbers or no regular array."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise Error(f'"{name}": not an array: {error}') from error
    if array.dtype.kind not in "fiub":
        raise Error(f'"{name}": an array of {array.dtype} is not numbers')
    return array


def put_numbers(name: str, target: NDArray[Any], values: ArrayLike) -> None:
    """Copy values to the array of the blob of this name. Raises Error where they do not fit it."""
    array = numbers(name, values)
    wrong = f'"{name}" has shape {target.shape}, but the array given has {array.shape}'
    if array.ndim and target.ndim and array.shape[:1] != target.shape[:1]:
        raise Error(f"{wrong}: not batch sized (net.blobs['{name}'].reshape(...) first)")
    try:
        target[...] = array
    except ValueError as error:
        raise Error(wrong) from error


def checked_shape(dims: tuple[int | Iterable[int], ...]) -> tuple[int, ...]:
    """reshape's arguments as a tuple of ints, or BlobError."""
    if len(dims) == 1 and isinstance(dims[0], Iterable):
        dims = tuple(dims[0])
    shape = tuple(int(d) for d in dims)  # type: ignore[arg-type]
    if len(shape) > MAX_AXES:
        raise BlobError(f"a blob has at most {MAX_AXES} axes, and shape {shape} has {len(shape)}")
    if any(d < 0 for d in shape):
        raise BlobError(f"a blob cannot have shape {shape}: an axis is negative")
    most = min(limits.blob_elements, MAX_COUNT)
    count = math.prod(d or 1 for d in shape)  # NumPy counts so too, and has no array of more, though it be empty
    if count > most:
        more = f": {limits.raising('blob_elements')}" if most < MAX_COUNT else ""
        raise BlobError(f"shape {shape} has {count} elements, more than the {most} that a blob may have{more}")
    return shape
