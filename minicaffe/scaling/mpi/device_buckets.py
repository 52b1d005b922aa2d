"""Gradients summed between GPUs by a CUDA-aware MPI: one whose library accepts device addresses.

Open MPI's nonblocking reductions abort on device memory (its issue 9845), so a thread runs the blocking one, bucket by bucket,
while the main thread continues with backward.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from minicaffe.blob import Blob
from minicaffe.cuda.device import Device, current, launch
from minicaffe.cuda.pool import DeviceMemory
from minicaffe.mode import gpu_mode

from .buckets import Bucket
from .library import mpi
from .ranks import Done, Ranks

VARIABLES = ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA")
"""Cray MPICH and MVAPICH2 are CUDA-aware if these are 1."""


def cuda_aware() -> bool:
    """Return the result of the MPI library's MPIX_Query_cuda_support, or without that function, of an environment variable."""
    try:
        query = ctypes.CDLL(mpi().__file__).MPIX_Query_cuda_support  # in the library that mpi4py loaded
    except (AttributeError, OSError):
        return any(os.environ.get(name) == "1" for name in VARIABLES)
    return bool(query())


def all_on_device(ranks: Ranks) -> bool:
    """Return whether every rank can sum gradients on its GPU.

    For that it is in GPU mode, its MPI is CUDA-aware, and its threads may all call MPI.
    """
    this_one = gpu_mode() and cuda_aware() and mpi().Query_thread() == mpi().THREAD_MULTIPLE
    return not ranks.largest(int(not this_one))


class DeviceSums:
    """Sums of device memory over the ranks."""

    def __init__(self) -> None:
        # A separate communicator: MPI orders collectives by communicator, and this thread runs concurrently with the main one.
        self.comm = mpi().COMM_WORLD.Dup()
        self.thread = ThreadPoolExecutor(1, "minicaffe exchange")  # one thread: buckets in the same order in all ranks

    def bucket(self, blobs: list[Blob], last: int) -> DeviceBucket:
        """Return a bucket that these sums exchange."""
        return DeviceBucket(blobs, last, self)

    def start(self, gpu: Device, address: int, count: int, dtype: np.dtype[Any]) -> Done:
        """Start replacing `count` numbers on the device by their sums over the ranks; return what Ranks.wait needs."""
        future = self.thread.submit(self._sum, gpu, address, count, dtype)
        return lambda: future.done() and future.result() is None  # result raises the thread's exception

    def _sum(self, gpu: Device, address: int, count: int, dtype: np.dtype[Any]) -> None:
        kind = mpi().FLOAT if dtype == np.float32 else mpi().DOUBLE
        with gpu.active():
            numbers = mpi().buffer.fromaddress(address, count * dtype.itemsize)
            self.comm.Allreduce(mpi().IN_PLACE, [numbers, count, kind], mpi().SUM)


class DeviceBucket(Bucket):
    """Blobs whose gradients are summed in one exchange, in device memory."""

    def __init__(self, blobs: list[Blob], last: int, sums: DeviceSums) -> None:
        super().__init__(blobs, last)
        self.sums = sums
        self.flat = self.flat[:0]  # the host's copy is not needed
        self.memory: DeviceMemory | None = None

    def start(self, ranks: Ranks) -> Done:
        """Start summing the gradients: in one flat copy, or in place for a single blob."""
        gpu = current()
        address = self._gathered(gpu)
        gpu.current_stream.synchronize()
        return self.sums.start(gpu, address, self.count, self.dtype)

    def put(self, factor: float) -> None:
        """Write the sums, times factor, to the blobs' diffs."""
        gpu, at = current(), 0
        for blob in self.blobs:
            diff = blob.device_diff("update" if self.memory is None else "write")  # a single blob was summed in place
            summed = diff if self.memory is None else self.memory.address + at * self.dtype.itemsize
            launch("eltwise.scaled", self.dtype, blob.count, blob.count, summed, factor, diff)
            at += blob.count
        gpu.current_stream.synchronize()

    def _gathered(self, gpu: Device) -> int:
        """Copy the gradients to contiguous memory unless there is one blob; return the address."""
        if len(self.blobs) == 1:
            return self.blobs[0].device_diff("update")
        if self.memory is None or self.memory.device is not gpu:
            self.memory = gpu.allocate(self.count * self.dtype.itemsize)
        at = self.memory.address
        for blob in self.blobs:
            nbytes = blob.count * self.dtype.itemsize
            # One buffer: an exchange for each blob would cost its latency each time.
            gpu.copy(at, blob.device_diff("read"), nbytes)
            at += nbytes
        return self.memory.address
