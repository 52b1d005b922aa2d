"""Whether MPI can exchange gradients between GPUs: whether its library accepts device addresses (is CUDA-aware)."""

from __future__ import annotations

import ctypes
import os

from minicaffe.mode import gpu_mode

from .library import mpi
from .ranks import Ranks

VARIABLES = ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA")
"""Cray MPICH and MVAPICH2 are CUDA-aware if these are 1."""


def cuda_aware() -> bool:
    """The result of MPIX_Query_cuda_support (in Open MPI and MPICH), else of the library's variable."""
    try:
        query = ctypes.CDLL(mpi().__file__).MPIX_Query_cuda_support  # in the library that mpi4py loaded
    except (AttributeError, OSError):
        return any(os.environ.get(name) == "1" for name in VARIABLES)
    return bool(query())


def all_on_device(ranks: Ranks) -> bool:
    """Whether every rank can sum gradients on its GPU: in GPU mode, CUDA-aware, and allowed to call MPI from other threads."""
    this_one = gpu_mode() and cuda_aware() and mpi().Query_thread() == mpi().THREAD_MULTIPLE
    return not ranks.largest(int(not this_one))
