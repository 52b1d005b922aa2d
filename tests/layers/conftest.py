"""Ways to compute that a test may ask for. test_contract.py holds all of them together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loops_in_python import computing

from minicaffe import kernels


@pytest.fixture
def compiled_loops() -> Iterator[None]:
    """Runs a test with compiled loops."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        yield


@pytest.fixture(params=["numpy", "definitions"])
def definitions_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test twice: as NumPy computes, and as loops do, in Python: of any type of numbers, and of small arrays."""
    if request.param == "definitions":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with computing(request.param):
        yield request.param
