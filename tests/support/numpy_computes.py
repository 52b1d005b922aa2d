"""For rooms whose tests are about something else than the loops: to compile them would take most of the rooms' time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from minicaffe import loops


@pytest.fixture(scope="module", autouse=True)
def numpy_computes() -> Iterator[None]:
    """Has NumPy compute in a module's tests and their processes, unless MINICAFFE_LOOPS is set."""
    if os.environ.get(loops.VARIABLE):
        yield
        return
    with pytest.MonkeyPatch.context() as patch, loops.using("numpy"):
        patch.setenv(loops.VARIABLE, "numpy")
        yield
