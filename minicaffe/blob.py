"""Blob: the n-d array pair (data, diff) that layers read and write, over lazily taken memory.

Source: Caffe's blob.hpp and syncedmem.hpp. A blob's memory is taken at first use, zeroed, and kept by reshape when
the new shape fits; two blobs may share one memory (Split, Reshape, shared weights).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .errors import BlobError, DeviceError, Error

MAX_COUNT = 2**31 - 1
"""Most elements of one blob: Caffe's INT_MAX."""

REPLACED = "a blob's {0} cannot be replaced, only written to: blob.{0}[...] = values (and blob.{0}[...] += values)"


class MemoryState(enum.Enum):
    """Where the current contents of a SyncedMemory are."""

    UNINITIALISED = "uninitialised"
    HOST = "host"
    DEVICE = "device"
    SYNCED = "synced"


class SyncedMemory:
    """One flat block of `size` elements, taken on first use and zeroed."""

    __slots__ = ("_host", "dtype", "size", "state")

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self.size, self.dtype = size, dtype
        self.state = MemoryState.UNINITIALISED
        self._host: NDArray[Any] | None = None

    def host(self) -> NDArray[Any]:
        """The block as a writable flat array; handing it out counts as a host write."""
        if self._host is None:
            self._host = np.zeros(self.size, self.dtype)
        self.state = MemoryState.HOST
        return self._host


class Blob:
    """An n-d array `data` with a `diff` of the same shape.

    data, diff: writable views (no copies) of shape `shape` and type `dtype` (float32 unless asked for float64).
    num, channels, height, width: the legacy 4-axis names; absent trailing axes count as 1.
    Raises BlobError for a negative axis, more than MAX_COUNT elements, and memory that cannot be shared.
    """

    __slots__ = ("_count", "_data", "_diff", "_shape", "dtype")

    def __init__(self, shape: Iterable[int] = (), dtype: DTypeLike = np.float32) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._shape: tuple[int, ...] = ()
        self._count = 0
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
            self._data = SyncedMemory(self._count, self.dtype)
        if self._count > self._diff.size:
            self._diff = SyncedMemory(self._count, self.dtype)

    @property
    def data(self) -> NDArray[Any]:
        """The values: a writable view, of the blob's shape."""
        return self._data.host()[: self._count].reshape(self._shape)

    @data.setter
    def data(self, values: object) -> NoReturn:
        raise AttributeError(REPLACED.format("data"))

    @property
    def diff(self) -> NDArray[Any]:
        """The gradient: a writable view, of the blob's shape."""
        return self._diff.host()[: self._count].reshape(self._shape)

    @diff.setter
    def diff(self, values: object) -> NoReturn:
        raise AttributeError(REPLACED.format("diff"))

    @property
    def _gpu_data_ptr(self) -> int:
        """pycaffe's address of data on the GPU. DeviceError."""
        raise DeviceError("the data are in the host's memory only: there is no address on a GPU")

    @property
    def _gpu_diff_ptr(self) -> int:
        """pycaffe's address of diff on the GPU. DeviceError."""
        raise DeviceError("the diff is in the host's memory only: there is no address on a GPU")

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


def checked_shape(dims: tuple[int | Iterable[int], ...]) -> tuple[int, ...]:
    """reshape's arguments as a tuple of ints, or BlobError."""
    if len(dims) == 1 and isinstance(dims[0], Iterable):
        dims = tuple(dims[0])
    shape = tuple(int(d) for d in dims)  # type: ignore[arg-type]
    if any(d < 0 for d in shape):
        raise BlobError(f"a blob cannot have shape {shape}: an axis is negative")
    if math.prod(shape) > MAX_COUNT:
        raise BlobError(f"shape {shape} has {math.prod(shape)} elements, more than the {MAX_COUNT} that a blob may have")
    return shape
