"""Whether gradients can go from GPU to GPU by MPI: whether its library takes addresses of device memory (is CUDA-aware)."""

from __future__ import annotations

import ctypes
import os

from minicaffe.mode import gpu_mode

from .library import mpi
from .ranks import Ranks

VARIABLES = ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA")
"""Cray MPICH and MVAPICH2 take device memory where these are 1."""


def cuda_aware() -> bool:
    """What the library's MPIX_Query_cuda_support says (Open MPI and MPICH have it), or else the library's variable."""
    try:
        query = ctypes.CDLL(mpi().__file__).MPIX_Query_cuda_support  # of the library that mpi4py has loaded
    except (AttributeError, OSError):
        return any(os.environ.get(name) == "1" for name in VARIABLES)
    return bool(query())


def all_on_device(ranks: Ranks) -> bool:
    """Whether every rank can sum where its gradients are: in GPU mode, CUDA-aware, and from a thread beside the main one."""
    own = gpu_mode() and cuda_aware() and mpi().Query_thread() == mpi().THREAD_MULTIPLE
    return not ranks.largest(int(not own))
