"""For pytest: compiled loops are written for vectors of MINICAFFE_TEST_VECTORS bits, whatever this processor has.

    MINICAFFE_TEST_VECTORS=512 NUMBA_CACHE_DIR=FOLDER PYTHONPATH=tests/support python -m pytest -p vector_width TESTS

LLVM makes several vectors of one that is too long: each machine tests what runs on the others. Each length needs a cache
of its own.
"""

from __future__ import annotations

import os

from minicaffe.compiled import jit
from minicaffe.compiled.jit import Registers

WIDTH = int(os.environ["MINICAFFE_TEST_VECTORS"])


def _registers(bits: int) -> Registers:
    return Registers(16 if WIDTH == 256 else 32, WIDTH // bits)  # with 128 bits, ARM's number


jit.registers = _registers  # type: ignore[assignment]
