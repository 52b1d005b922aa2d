"""NVRTC in place of nvcc: needs no GPU, but cuda-core, cuda-bindings and nvidia-cuda-nvrtc (the extra gpu-cu13)."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from minicaffe.cuda import device, source
from minicaffe.errors import DeviceError

FILES = sorted(path.stem for path in source.FOLDER.glob("*.cu"))


def why_not() -> str:
    try:
        device.nvrtc_version()
    except DeviceError as error:
        return str(error)
    return ""


WHY_NOT = why_not()
nvrtc = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_nvcc", lambda: None)


@nvrtc
@pytest.mark.parametrize("stem", FILES)
def test_every_file_compiles(no_nvcc: None, stem: str) -> None:
    for dtype in (np.float32, np.float64):
        code = device.compiled(stem, np.dtype(dtype), (9, 0))
        assert code.startswith(b"\x7fELF")
        for name in source.signatures(stem):
            assert name.encode() in code


@nvrtc
def test_an_error_names_file_and_line(no_nvcc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = source.text("relu")
    monkeypatch.setattr(source, "text", lambda stem: text.replace("LOOP(", "LOUP(", 1))
    with pytest.raises(
        DeviceError, match=r"cuda/relu\.cu does not compile for REAL = float, sm_90:\n(.*\n)*cuda/.*\(\d+\): error"
    ):
        device.compiled("relu", np.dtype(np.float32), (9, 0))


def test_neither_nvcc_nor_nvrtc(no_nvcc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(DeviceError, match=r"neither nvcc \(the CUDA toolkit\) nor NVRTC \(pip install minicaffe\[gpu-cu13\]"):
        device.compiled("relu", np.dtype(np.float32), (9, 0))
