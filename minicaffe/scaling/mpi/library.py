"""The only module that imports mpi4py, which starts MPI."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from minicaffe.errors import Error, install


def mpi() -> ModuleType:
    """Return mpi4py.MPI. Raises Error if mpi4py or the MPI library is missing."""
    try:
        return import_module("mpi4py.MPI")
    except ImportError as error:
        raise Error(f"--engine mpi needs mpi4py and an MPI: {install('mpi')} ({error})") from error
    except RuntimeError as error:  # "cannot load MPI library"
        raise Error(f"mpi4py finds no MPI library: {install('mpi')}, or the system's ({error})") from error
