"""A convolution as calls of a compiled loop that are ready: another map, or another map's memory, costs two numbers a call."""

from __future__ import annotations

from minicaffe.blob import Array
from minicaffe.blocks import Calls, Job
from minicaffe.loops import address_of

from .epilogue import EVERY, Epilogue


class CompiledProduct:
    """y = epilogue of x convolved with weight, of the shapes that the calls are for; for one thread at a time.

    calls: of a loop whose arrays that come with the call are x, weight, the epilogue's table (3, filters), flat, and y.
    """

    def __init__(self, calls: Calls, epilogue: Epilogue, filters: int) -> None:
        self._job = Job(calls)
        self._after = epilogue.table(EVERY, filters, calls.dtype)
        self._after_address = address_of(self._after)

    def __call__(self, x: Array, weight: Array, y: Array) -> None:
        """The arrays are C-contiguous."""
        self.at(address_of(x), address_of(weight), address_of(y))

    def at(self, x: int, weight: int, y: int) -> None:
        """The same, of arrays at these addresses."""
        self._job.run(x, weight, self._after_address, y)
