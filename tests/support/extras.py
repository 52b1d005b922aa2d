"""Tests that need an extra whose packages have no wheel for every Python."""

from __future__ import annotations

import pytest

MODULES = {"hdf5": ["h5py"], "lmdb": ["lmdb"], "onnx": ["onnx", "onnxruntime"]}
OF_COMMAND = {
    **dict.fromkeys(("export", "import"), "onnx"),
    **dict.fromkeys(("compute-image-mean", "convert-annoset", "convert-imageset", "extract-features"), "lmdb"),
    "dump": "hdf5",
}
"""What a command's cases need."""


def require(extra: str) -> None:
    """Skip the test where the extra is not installed."""
    for module in MODULES[extra]:
        pytest.importorskip(module, reason=f"the extra {extra} is not installed")
