"""A convolution as prepared calls of a compiled loop: another map, or other memory, changes only two numbers of a call."""

from __future__ import annotations

from minicaffe.blob import Array, Blob, address_of
from minicaffe.compiled.epilogue import table
from minicaffe.compiled.jobs import BlobJob, Calls, Job, KeptStep
from minicaffe.layers.elementwise.epilogue import EVERY, Epilogue


class CompiledProduct:
    """y = epilogue of x convolved with weight, for the shapes of the calls; for one thread at a time.

    calls: of a loop whose dynamic arrays are x, weight, the epilogue's table (3, filters), flat, and y.
    made: the array that replaces weight, if any.
    """

    def __init__(self, calls: Calls, epilogue: Epilogue, filters: int, made: Array | None = None) -> None:
        self._job, self._made = Job(calls), made
        self._after = table(epilogue, EVERY, filters, calls.dtype)

    def __call__(self, x: Array, weight: Array, y: Array) -> None:
        """Run the product. The arrays are C-contiguous."""
        self._job.run(*map(address_of, (x, weight if self._made is None else self._made, self._after, y)))

    def step(self, x: Blob, weight: Blob, y: Blob) -> KeptStep:
        """Return the product of blobs as a KeptStep."""
        return KeptStep([BlobJob(self._job, (x, weight if self._made is None else self._made, self._after), y)])
