"""Blob: the n-d array pair (data, diff) that layers read and write, in memory allocated at first use.

Source: Caffe's blob.hpp and syncedmem.hpp. A blob's memory is allocated at first use, zeroed, and kept by reshape when
the new shape fits; two blobs may share one memory (Split, Reshape, shared weights). It is copied between host and device
on demand.
"""

from __future__ import annotations

import enum
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from sys import getrefcount
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import limits
from .cuda import capture as captures
from .cuda.device import current, stream_of_pass
from .errors import BlobError, Error
from .mode import gpu_mode
from .process_fork import renewed

if TYPE_CHECKING:
    from .cuda.device import Device
    from .cuda.pool import DeviceMemory

Array = NDArray[Any]
Arrays = dict[str, Array]
Access = Literal["read", "write", "update"]

MAX_COUNT = 2**31 - 1
"""Most elements of one blob: Caffe's INT_MAX."""
MAX_AXES = 32
"""Most axes of one blob: Caffe's kMaxBlobAxes (NumPy 1 has 32 too, NumPy 2 has 64)."""

ALIGNMENT = 64
"""Bytes of a cache line: a vector across two lines costs twice the time."""
PAGE, LARGE = 2 << 20, 4 << 20
"""Bytes of a large page, and of the smallest array for which NumPy asks Linux for large pages. With small pages the processor
looks up many addresses, and it prefetches only up to the end of each page."""

REPLACED = "a blob's {0} cannot be replaced, only written to: blob.{0}[...] = values (and blob.{0}[...] += values)"


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the array's first number in memory."""
    return int(array.__array_interface__["data"][0])


class MemoryState(enum.Enum):
    """The place of a SyncedMemory's current contents."""

    UNINITIALISED = "uninitialised"
    HOST = "host"
    DEVICE = "device"
    SYNCED = "synced"


_first_use = renewed(RLock())
"""Held while a SyncedMemory allocates its array on the host."""


class SyncedMemory:
    """One flat block of `size` elements on the host, the device, or both; allocated on first use and zeroed.

    The caller says how many elements it uses and what for: "read" leaves the other side's copy valid, "update" (read and
    write) and "write" (every element is overwritten, so nothing is copied) do not.

    The device holds the first `_held` elements, and the state is theirs; the rest are on the host only. freed_message: why the
    memory was given back, or may not be used now; access then raises Error. borrowed: whether it is lent for some time.
    uploads: the number of copies to the device. writes: the number of accesses to write. watched: whether such an access is a
    change (current_version). address: the address on the host, once host_address was called; else 0.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_held",
        "_host",
        "address",
        "borrowed",
        "dtype",
        "freed_message",
        "pinned",
        "size",
        "state",
        "uploads",
        "watched",
        "writes",
    )

    def __init__(self, size: int, dtype: np.dtype[Any], pinned: bool = False, freed_message: str = "") -> None:
        self.size, self.dtype, self.pinned, self.freed_message = size, dtype, pinned, freed_message
        self.state = MemoryState.UNINITIALISED
        self._host: Array | None = None
        self._device: DeviceMemory | None = None
        self.address = self._held = self.uploads = self.writes = 0
        self.borrowed = self.watched = False

    def host(self, count: int, access: Access = "update") -> Array:
        """Return the first count elements as a writable flat array on the host."""
        if captures.under_way:
            captures.refuse("numbers on the host")
        if self.freed_message:
            raise Error(self.freed_message)
        if self._host is None:
            with _first_use:  # several threads may get here at once
                self._host = self._new_host() if self._host is None else self._host
        # A write of fewer elements keeps the others, and only the device has them.
        if self.state is MemoryState.DEVICE and (access != "write" or count < self._held):
            self._copy_to_host()
        if access != "read":
            self.state = MemoryState.HOST
            self.wrote()
        return self._host[:count]

    def wrote(self) -> None:
        """Record that the numbers on the host may have changed."""
        self.writes += 1
        if self.watched:
            bump_version()

    def host_address(self, count: int, access: Access) -> int:
        """Return the address of host's array in memory."""
        self.host(count, access)
        if not self.address:
            assert self._host is not None
            self.address = address_of(self._host)
        return self.address

    @property
    def on_host(self) -> bool:
        """True if there is memory on the host."""
        return self._host is not None

    def use_buffer(self, memory: Array) -> None:
        """Keep the numbers in these bytes, which belong to another owner, as the memory on the host."""
        self._host, self.address, self.state = memory.view(self.dtype), address_of(memory), MemoryState.HOST

    def references(self) -> int:
        """Return the reference count of the array that owns the numbers on the host. Every view of them holds a reference.

        It is 0 without such an array, or with another owner, as page-locked memory has.
        """
        base = None if self._host is None else self._host.base
        return getrefcount(base) if isinstance(base, np.ndarray) and base.base is None else 0

    def has_views(self) -> bool:
        """Return whether there may be a view of the numbers on the host, through which they can change at any time."""
        return self.references() != UNHELD

    def device(self, count: int, access: Access) -> int:
        """Return the address of the first count elements on the device. Raises DeviceError if it is out of memory."""
        memory, stream = self._device, stream_of_pass()
        if (
            stream is not None
            and memory is not None
            and count <= self._held
            and self.state is not MemoryState.HOST
            and memory.used_only_by(stream)
        ):  # the common case: the memory is up to date on the device
            if access != "read":
                self.state = MemoryState.DEVICE
                self.writes += 1
                bump_version()
            return memory.address
        if self.freed_message:
            raise Error(self.freed_message)
        gpu = current()
        with gpu.active():
            memory = self._device
            if captures.under_way and (capture := captures.current()):
                capture.use(self, count, access, (self.state, memory, self._held))
            if memory is None or self._held < count or memory.device is not gpu:
                memory = self._grow(gpu, count, access)
            upload = self.state is MemoryState.HOST and (access != "write" or count < self._held)
            memory.used_by(gpu.current_stream.handle, only_read=access == "read" and not upload)
            if upload:
                # all elements, not just count, because they share one state
                gpu.to_device(memory.address, self.host(self._held, "read"))
                self.state = MemoryState.SYNCED
                self.uploads += 1
            if access != "read":
                self.state = MemoryState.DEVICE
                self.writes += 1
            gpu.current_stream.hold(memory)
        bump_version()
        return memory.address

    # For CUDA graphs: captured launches keep the address of the memory's block.

    @property
    def block(self) -> DeviceMemory | None:
        """The memory's block on the device."""
        return self._device

    def is_in(self, block: DeviceMemory, count: int, stream: Any) -> bool:
        """Make the first count elements readable by this stream of the driver; return whether they are in this block.

        Changes on the host are copied there, and the stream waits for other streams that write.
        """
        if self._device is block and (self.state is MemoryState.HOST or stream not in block.users):
            self.device(count, "read")
        return self._device is block

    def wait_for_readers(self, stream: Any) -> None:
        """Let the driver's stream wait for all others that use the memory, so that it may write."""
        if self._device is not None and self._device.users != (stream,):
            self._device.used_by(stream, only_read=False)

    def undo(self, before: tuple[MemoryState, DeviceMemory | None, int]) -> None:
        """Restore the state before a capture that was dropped, whose launches never ran."""
        self.state, self._device, self._held = before
        bump_version()

    def fetched(self, count: int) -> Array:
        """Return a copy of the first count elements. A copy from the device is complete after a wait for the current stream."""
        memory = self._device
        if self.state is not MemoryState.DEVICE or memory is None or count > self._held:
            array: Array = self.host(count, "read").copy()
            return array
        with memory.device.active():
            memory.used_by(memory.device.current_stream.handle, only_read=True)
            return memory.device.fetch(memory.address, count, self.dtype)

    def zero(self, count: int) -> None:
        """Set the first count elements to 0, in GPU mode on the device."""
        if not gpu_mode():
            self.host(count, "write")[...] = 0
        elif count:
            current().zero(self.device(count, "write"), count * self.dtype.itemsize)

    def _new_host(self) -> Array:
        # Memory that was on the GPU goes there again, and copies from page-locked memory are faster.
        if self._device is not None or (self.pinned and gpu_mode()):
            return current().pinned(self.size, self.dtype)
        return aligned_zeros(self.size, self.dtype)

    def _copy_to_host(self) -> None:
        memory, host = self._device, self._host
        if memory is not None and host is not None:
            with memory.device.active():
                memory.used_by(memory.device.current_stream.handle, only_read=True)
                memory.device.to_host(host[: self._held], memory.address)
        self.state = MemoryState.SYNCED

    def _grow(self, gpu: Device, count: int, access: Access) -> DeviceMemory:
        """Allocate memory for count elements on gpu and, where they are read, copy the contents there."""
        if self._device is not None and self._device.device is not gpu:  # on another GPU: copy through the host
            if self.state is MemoryState.DEVICE:
                self.host(self._held, "read")
            if self.state is MemoryState.SYNCED:
                self.state = MemoryState.HOST
            self._device, self._held = None, 0
        memory = gpu.allocate(count * self.dtype.itemsize)
        # otherwise the contents are overwritten, or device() uploads them
        if access != "write" and self.state is not MemoryState.HOST:
            self._fill(gpu, memory.address, count)
        self._device, self._held = memory, count
        return memory

    def _fill(self, gpu: Device, to: int, count: int) -> None:
        """Copy the first count elements to new memory: first those that the device holds, the others from the host."""
        size, old, held = self.dtype.itemsize, self._device, self._held
        if old is not None:
            old.used_by(gpu.current_stream.handle, only_read=True)
            gpu.copy(to, old.address, held * size)
        if self._host is not None:
            gpu.to_device(to + held * size, self._host[held:count])
        else:
            gpu.zero(to + held * size, (count - held) * size)


def paged_zeros(size: int) -> Array:
    """Return `size` zero bytes for memory that is kept. From LARGE on they begin at a large page, and take one more."""
    return aligned_zeros(size, np.dtype(np.uint8), PAGE if size >= LARGE else ALIGNMENT)


def aligned_zeros(count: int, dtype: np.dtype[Any], alignment: int = ALIGNMENT) -> Array:
    """Return `count` zeros that begin at a cache line. The system allocates their pages when they are written to."""
    memory = np.zeros(count * dtype.itemsize + alignment, np.uint8)
    start = -address_of(memory) % alignment
    return memory[start : start + count * dtype.itemsize].view(dtype)


@contextmanager
def only_read(memories: Iterable[SyncedMemory]) -> Iterator[None]:
    """Keep these memories' device copies valid, although the block may hand out their writable host arrays."""
    before = [(memory, memory.state) for memory in memories]
    try:
        yield
    finally:
        for memory, state in before:
            if state in (MemoryState.DEVICE, MemoryState.SYNCED) and memory.state is MemoryState.HOST:
                memory.state = MemoryState.SYNCED


class Blob:
    """An n-d array `data` with a `diff` of the same shape.

    Parameters
    ----------
    shape : iterable of int, default ()
        The length of each axis.
    dtype : dtype, default float32
        float32, or float64 for gradient checks.

    Attributes
    ----------
    dtype : numpy.dtype
        The type of data and diff.
    data_memory, diff_memory : SyncedMemory
        The memory of data and diff. Blobs that share data or diff have the same one.
    watched : bool
        If True, another shape, data_memory or shared diff counts as a change (current_version).

    Raises
    ------
    BlobError
        An axis is negative, or the blob has more than 32 axes or 2**31 - 1 elements.

    Notes
    -----
    num, channels, height and width are the legacy names of four axes. Absent trailing axes count as 1.
    Memory is allocated at first use, zeroed, and copied between host and device on demand.
    Source: Caffe's blob.hpp and syncedmem.hpp.
    """

    __slots__ = ("_count", "_pinned", "_shape", "data_memory", "diff_memory", "dtype", "watched")

    def __init__(self, shape: Iterable[int] = (), dtype: DTypeLike = np.float32) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._shape: tuple[int, ...] = (0,)
        self._count = 0
        self._pinned = self.watched = False
        self.data_memory = SyncedMemory(0, self.dtype)
        self.diff_memory = SyncedMemory(0, self.dtype)
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
        """Change the shape.

        The memory is kept if the new count fits in it. Otherwise the contents are dropped, as in Caffe.

        Parameters
        ----------
        *dims : int or one iterable of int
            The length of each axis.

        Raises
        ------
        BlobError
            No blob can have this shape.
        """
        given = dims[0] if len(dims) == 1 else dims
        # in most forwards the shape stays the same and needs no check
        if not (isinstance(given, tuple) and given == self._shape):
            before, self._shape = self._shape, checked_shape(dims)
            self._count = math.prod(self._shape)
            if self.watched and self._shape != before:
                bump_version()
        # As in Caffe, growing drops the contents, and blobs that shared the old memory keep it.
        if self._count > self.data_memory.size or self.data_memory.freed_message:
            self.take_new()
        if self._count > self.diff_memory.size:
            self.diff_memory = SyncedMemory(self._count, self.dtype)

    @property
    def data(self) -> Array:
        """The values: a writable view, of the blob's shape."""
        return self.data_memory.host(self._count).reshape(self._shape)  # "update": the caller may write to the view

    @data.setter
    def data(self, values: object) -> NoReturn:
        raise AttributeError(REPLACED.format("data"))

    @property
    def diff(self) -> Array:
        """The gradient: a writable view, of the blob's shape."""
        return self.diff_memory.host(self._count).reshape(self._shape)

    @diff.setter
    def diff(self, values: object) -> NoReturn:
        raise AttributeError(REPLACED.format("diff"))

    def read_data(self) -> Array:
        """Return the values as a read-only array. A copy on the device stays valid."""
        return self._read(self.data_memory)

    def data_for_loops(self) -> Array:
        """Return the values for reading, as a writable array: the types of compiled loops require one."""
        return self.data_memory.host(self._count, "read").reshape(self._shape)

    def data_address(self, access: Access) -> int:
        """Return the address of data in host memory, for a compiled loop.

        Parameters
        ----------
        access : {"read", "write", "update"}
            The use of the values. "write" overwrites all of them; "update" reads and writes.

        Returns
        -------
        int
            The address.
        """
        return self.data_memory.host_address(self._count, access)

    def read_later(self) -> Callable[[], Array]:
        """Return a function that gives the present values as a flat array.

        Returns
        -------
        callable
            If the values are on the device, call it after the next wait for the current stream.
        """
        array = self.data_memory.fetched(self._count)
        return lambda: array

    def read_diff(self) -> Array:
        """Return the gradient as a read-only array."""
        return self._read(self.diff_memory)

    def _read(self, memory: SyncedMemory) -> Array:
        view = memory.host(self._count, "read").reshape(self._shape)
        view.flags.writeable = False
        return view

    def device_data(self, access: Access) -> int:
        """Return the address of data on the GPU, for a kernel.

        Parameters
        ----------
        access : {"read", "write", "update"}
            The use of the values. "write" overwrites all of them; "update" reads and writes.

        Returns
        -------
        int
            The address.

        Raises
        ------
        DeviceError
            There is no usable GPU, or its memory is full.
        """
        if captures.under_way and (capture := captures.current()):
            capture.asked(self)
        return self.data_memory.device(self._count, access)

    def device_diff(self, access: Access) -> int:
        """Return the address of diff on the GPU, for a kernel.

        Parameters
        ----------
        access : {"read", "write", "update"}
            The use of the gradient. "write" overwrites all of it; "update" reads and writes.

        Returns
        -------
        int
            The address.

        Raises
        ------
        DeviceError
            There is no usable GPU, or its memory is full.
        """
        if captures.under_way:
            captures.refuse("a gradient")
        return self.diff_memory.device(self._count, access)

    def zero_diff(self) -> None:
        """Set diff to 0, in GPU mode on the device."""
        self.diff_memory.zero(self._count)

    def pin(self) -> None:
        """Allocate data's host memory page-locked in GPU mode, as for a net's inputs."""
        self._pinned = self.data_memory.pinned = True

    def give_back(self, freed_message: str) -> None:
        """Free data's memory until `take_again` or a reshape.

        Parameters
        ----------
        freed_message : str
            The text of the Error that reading data raises until then.
        """
        self._take(SyncedMemory(0, self.dtype, self._pinned, freed_message))

    def keep(self) -> Callable[[], None]:
        """Return a function that gives the blob its present shape and memory again.

        Returns
        -------
        callable
            Called without arguments. It restores numbers only if nothing wrote to the memory.
        """
        before = self._shape, self._count, self.data_memory, self.diff_memory

        def restore() -> None:
            self._shape, self._count, self.data_memory, self.diff_memory = before
            if self.watched:
                bump_version()

        return restore

    def take_new(self) -> SyncedMemory:
        """Give data memory of its own, which is allocated at first use.

        Returns
        -------
        SyncedMemory
            The new memory.
        """
        self._take(SyncedMemory(self._count, self.dtype, self._pinned))
        return self.data_memory

    def take_again(self) -> None:
        """Let data allocate memory again, if it was given back or is lent."""
        if self.data_memory.freed_message or self.data_memory.borrowed:
            self.take_new()

    def _take(self, memory: SyncedMemory) -> None:
        before, self.data_memory = self.data_memory, memory
        if self.watched and memory is not before:
            bump_version()

    @property
    def _gpu_data_ptr(self) -> int:
        """The address of data on the GPU, for pycaffe. Reading it counts as a write there. Raises DeviceError without a GPU."""
        return self.device_data("update")

    @property
    def _gpu_diff_ptr(self) -> int:
        """The address of diff on the GPU, for pycaffe. Reading it counts as a write there. Raises DeviceError without a GPU."""
        return self.device_diff("update")

    @property
    def data_state(self) -> MemoryState:
        """The place of data's current contents."""
        return self.data_memory.state

    @property
    def diff_state(self) -> MemoryState:
        """The place of diff's current contents."""
        return self.diff_memory.state

    @property
    def num(self) -> int:
        """The length of axis 0. Raises BlobError for more than 4 axes."""
        return self._legacy(0)

    @property
    def channels(self) -> int:
        """The length of axis 1, of at most 4."""
        return self._legacy(1)

    @property
    def height(self) -> int:
        """The length of axis 2, of at most 4."""
        return self._legacy(2)

    @property
    def width(self) -> int:
        """The length of axis 3, of at most 4."""
        return self._legacy(3)

    def _legacy(self, axis: int) -> int:
        if len(self._shape) > 4:
            raise BlobError(f"num, channels, height and width need at most 4 axes; the blob has shape {self._shape}")
        return self._shape[axis] if axis < len(self._shape) else 1

    def share_data(self, other: Blob) -> None:
        """Share data with another blob: a write to one is seen in both.

        Parameters
        ----------
        other : Blob
            A blob with the same count and dtype.

        Raises
        ------
        BlobError
            The count or the dtype differs.
        """
        self._check_shareable(other)
        self._take(other.data_memory)

    def share_diff(self, other: Blob) -> None:
        """Share diff with another blob.

        Parameters
        ----------
        other : Blob
            A blob with the same count and dtype.

        Raises
        ------
        BlobError
            The count or the dtype differs.
        """
        self._check_shareable(other)
        before, self.diff_memory = self.diff_memory, other.diff_memory
        if self.watched and self.diff_memory is not before:
            bump_version()

    def share(self, other: Blob) -> None:
        """Share data and diff with another blob.

        Parameters
        ----------
        other : Blob
            A blob with the same count and dtype.

        Raises
        ------
        BlobError
            The count or the dtype differs.
        """
        self.share_data(other)
        self.share_diff(other)

    def shares_data_with(self, other: Blob) -> bool:
        """Return True if data is shared with another blob.

        Parameters
        ----------
        other : Blob
            The other blob.

        Returns
        -------
        bool
            True if both have the same data_memory.
        """
        return self.data_memory is other.data_memory

    def _check_shareable(self, other: Blob) -> None:
        if self._count != other._count or self.dtype != other.dtype:  # Caffe compares counts, not shapes: Reshape shares too
            raise BlobError(f"blobs of shapes {self._shape} and {other._shape} cannot share memory")

    def __repr__(self) -> str:
        return f"Blob({' x '.join(map(str, self._shape)) or 'scalar'}, {self.dtype})"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook. The module is imported by name, because the engine must not import tracing."""
        return str(importlib.import_module("minicaffe.tracing.representations").blob_html(self))


_latest = object()


def current_version() -> object:
    """Return an object that is replaced at each watched change: compare it with the one of an earlier call.

    Changes are: another shape or memory of a watched blob, another attribute of a watched layer, other blobs of any layer, a
    write access to watched memory, any write access on the device, and a new watcher. Checking each of a net's blobs and
    layers would be slow, because the layers' computations have pushed them out of the cache.
    """
    return _latest


def bump_version() -> None:
    """Replace current_version's object. Call it after a watched change."""
    global _latest
    _latest = object()


class Unchanged:
    """A check that blobs still have the data that they had when it was made.

    It holds if no writable view existed then, and none was requested since. Comparing the numbers would take as long as a
    small layer. shaped: blobs of which only the shapes count.
    """

    def __init__(self, blobs: Iterable[Blob], shaped: Iterable[Blob] = ()) -> None:
        self._seen = [(blob, blob.data_memory, blob.data_memory.writes, blob.shape) for blob in blobs]
        # A caller may write to an existing view and then drop it, which leaves no trace.
        self._known = not any(blob.data_memory.has_views() for blob, *_ in self._seen)
        self._shapes = {blob: blob.shape for blob in shaped}
        if not all(memory.watched for _, memory, *_ in self._seen):
            bump_version()  # programs that check the version must learn that this memory is watched
        for blob, memory, *_ in self._seen:
            blob.watched = memory.watched = True
        for blob in self._shapes:
            blob.watched = True

    @classmethod
    def joined(cls, several: Sequence[Unchanged]) -> Unchanged:
        """Return one check that holds if all of these hold."""
        made = cls(())
        made._seen = [seen for one in several for seen in one._seen]
        made._known = all(one._known for one in several)
        made._shapes = {blob: shape for one in several for blob, shape in one._shapes.items()}
        return made

    def holds(self) -> bool:
        """Return True if the blobs certainly have the same data."""
        if not self._known:
            return False
        for blob, memory, writes, shape in self._seen:
            if memory.writes != writes or blob.data_memory is not memory or blob._shape != shape:
                return False
        return all(blob._shape == shape for blob, shape in self._shapes.items())


class DeviceArray(Protocol):
    """The part of a blob, or of another array on the GPU, that a kernel's launcher needs."""

    @property
    def count(self) -> int:
        """Number of elements."""

    def device_data(self, access: Access) -> int:
        """Return the address of the values."""

    def device_diff(self, access: Access) -> int:
        """Return the address of the gradient."""


class BlobList(list[Blob]):
    """A layer's learnable blobs; add_blob(*shape) appends one (pycaffe's BlobVec)."""

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        super().__init__()
        self.dtype = np.dtype(dtype)

    def add_blob(self, *shape: int) -> Blob:
        """Append a blob of zeros of this shape, and return it."""
        blob = Blob(shape, self.dtype)
        self.append(blob)
        return blob

    def __setitem__(self, i: Any, blob: Any) -> None:
        if isinstance(i, int | np.integer) and not isinstance(blob, Blob):
            raise TypeError(f"item {i} is a blob: write blobs[{i}].data[...] = values")
        super().__setitem__(i, blob)


def _noting(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def noted(*given: Any, **more: Any) -> Any:
        try:
            return change(*given, **more)
        finally:
            bump_version()

    return noted


for _name in "__setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove reverse sort".split():
    setattr(BlobList, _name, _noting(getattr(BlobList, _name)))


def numbers(name: str, values: ArrayLike) -> Array:
    """Return values as an array.

    Raises Error, with the name of their blob, unless they are a regular array of real numbers.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise Error(f'"{name}": not an array: {error}') from error
    if array.dtype.kind not in "fiub":
        raise Error(f'"{name}": an array of {array.dtype}, not of numbers')
    return array


def put_numbers(name: str, target: Array, values: ArrayLike) -> None:
    """Copy values to a blob's array. Raises Error, with the blob's name, unless they fit."""
    array = numbers(name, values)
    wrong = f'"{name}" has shape {target.shape}, but the array given has {array.shape}'
    # Without this check, NumPy would broadcast a single item over the batch.
    if array.ndim and target.ndim and array.shape[:1] != target.shape[:1]:
        raise Error(f"{wrong}: not batch sized (net.blobs['{name}'].reshape(...) first)")
    try:
        target[...] = array
    except ValueError as error:
        raise Error(wrong) from error


def checked_shape(dims: tuple[int | Iterable[int], ...]) -> tuple[int, ...]:
    """Return reshape's arguments as a tuple of ints. Raises BlobError."""
    if len(dims) == 1 and isinstance(dims[0], Iterable):
        dims = tuple(dims[0])
    shape = tuple(int(d) for d in dims)  # type: ignore[arg-type]
    if len(shape) > MAX_AXES:
        raise BlobError(too_many_axes(shape))
    if any(d < 0 for d in shape):
        raise BlobError(f"a blob cannot have shape {shape}: an axis is negative")
    most = min(limits.blob_elements, MAX_COUNT)
    count = math.prod(d or 1 for d in shape)  # as NumPy counts: it also limits the axes of an empty array
    if count > most:
        more = f": {limits.raising('blob_elements')}" if most < MAX_COUNT else ""
        raise BlobError(f"shape {shape} has {count} elements, more than the {most} that a blob may have{more}")
    return shape


def too_many_axes(shape: Sequence[int]) -> str:
    """Return a message on a shape of more than MAX_AXES axes; of thousands, it names only the first and the last."""
    named = list(map(str, shape))
    if len(shape) > 2 * MAX_AXES:
        named[3:-1] = ["..."]
    return f"a blob has at most {MAX_AXES} axes, and shape ({', '.join(named)}) has {len(shape)}"


def _unheld() -> int:
    blob = Blob((1,))
    blob.data[...] = 0
    return blob.data_memory.references()


UNHELD = _unheld()
"""The value of SyncedMemory.references without views."""
