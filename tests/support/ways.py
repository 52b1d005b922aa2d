"""The ways of computing for tests whose subject is no loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minicaffe import kernels


@pytest.fixture(autouse=True, params=["numpy", pytest.param("numba", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """As NumPy computes; compiled loops, which the layers' own tests compare with it, are slow to compile for all types."""
    if request.param == "numba":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using(request.param):
        yield
