"""The state of a training after its last complete iteration, kept while tests and the next iteration run.

A failing iteration has drawn random numbers, read data and moved running statistics. A snapshot must hold the values from
before it, so that a resumed training repeats the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from minicaffe.blob import Blob
from minicaffe.errors import Error
from minicaffe.mode import gpu_mode
from minicaffe.net import Net

from .running_state import State


@runtime_checkable
class HasRunningBlobs(Protocol):
    """A layer whose forward changes blobs, such as running means: no solver updates them."""

    def running_blobs(self) -> Sequence[Blob]:
        """Return these blobs."""


class LastIteration:
    """The running state before an iteration of a net, None outside of iterations; and the blobs that its forward changes."""

    def __init__(self, net: Net) -> None:
        self.state: State | None = None
        blobs = [blob for layer in net.layers if isinstance(layer, HasRunningBlobs) for blob in layer.running_blobs()]
        self._kept = [(blob, Blob(blob.shape, blob.dtype)) for blob in blobs]

    def keep(self, state: State) -> None:
        """Keep the state and the blobs' data."""
        self.state = state
        for blob, kept in self._kept:
            _copy(blob, kept)

    def put_back(self) -> None:
        """Restore the blobs' data, during an iteration."""
        for blob, kept in self._kept if self.state else ():
            _copy(kept, blob)


def _copy(source: Blob, target: Blob) -> None:
    """Copy the data of a blob, on the device in GPU mode: a copy to the host would wait for all kernels."""
    if gpu_mode():
        from minicaffe.cuda.device import current

        nbytes = source.count * source.dtype.itemsize
        current().copy(target.device_data("write"), source.device_data("read"), nbytes)
    else:
        target.data[...] = source.read_data()


def add_note(error: Exception, note: str) -> None:
    """Append a line to the message of a minicaffe error or MemoryError, and a note to any other exception."""
    if isinstance(error, Error | MemoryError):
        error.args = (f"{error}\n{note}", *error.args[1:])
    elif hasattr(error, "add_note"):  # since Python 3.11
        error.add_note(note)
