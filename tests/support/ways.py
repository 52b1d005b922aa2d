"""The ways of computing for tests whose subject is no loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minicaffe import kernels


@pytest.fixture(autouse=True, params=["numpy", pytest.param("numba", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute by NumPy, and by compiled loops only in slow tests, since compiling them for all types takes long."""
    if request.param == "numba":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using(request.param):
        yield
