"""Tests that need an extra whose packages have no wheel for every Python."""

from __future__ import annotations

import pytest

MODULES = {"hdf5": ["h5py"], "lmdb": ["lmdb"], "onnx": ["onnx", "onnxruntime"]}


def require(extra: str) -> None:
    """Skip the test where the extra is not installed."""
    for module in MODULES[extra]:
        pytest.importorskip(module, reason=f"the extra {extra} is not installed")
