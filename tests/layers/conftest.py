"""How layers compute in these tests: with NumPy, unless a test asks for loops. test_contract.py holds all ways together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loops_in_python import computing

from minicaffe import loops


@pytest.fixture(autouse=True)
def _numpy_computes() -> Iterator[None]:
    """To compile a loop takes a second for each type of numbers: float32's are enough, where a test asks for them."""
    with loops.using("numpy"):
        yield


@pytest.fixture
def compiled_loops(_numpy_computes: None) -> Iterator[None]:
    """Runs a test with compiled loops."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with loops.using("numba"):
        yield


@pytest.fixture(params=["numpy", "definitions"])
def definitions_way(request: pytest.FixtureRequest, _numpy_computes: None) -> Iterator[str]:
    """Runs a test twice: as NumPy computes, and as loops do, in Python: of any type of numbers, and of small arrays."""
    if request.param == "definitions":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with computing(request.param):
        yield request.param
