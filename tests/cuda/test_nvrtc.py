"""NVRTC: needs no GPU, but cuda-core, cuda-bindings and nvidia-cuda-nvrtc (the extra gpu-cu13)."""

from __future__ import annotations

import logging
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from minicaffe.cuda import compile as compiler
from minicaffe.cuda import compilers, source
from minicaffe.errors import DeviceError

FILES = sorted(path.stem for path in source.FOLDER.glob("*.cu"))


def why_not() -> str:
    try:
        compilers.nvrtc_version()
    except DeviceError as error:
        return str(error)
    return ""


WHY_NOT = why_not()
nvrtc = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compilers, "find_nvcc", lambda: None)
    monkeypatch.delenv("MINICAFFE_NVCC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@nvrtc
def test_every_file_compiles_without_warnings(no_nvcc: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wrong = []
    for stem, dtype in product(FILES, (np.float32, np.float64)):
        caplog.clear()
        code = compiler.compiled(stem, np.dtype(dtype), (9, 0))
        missing = [name for name in source.signatures(stem) if name.encode() not in code]
        if missing or caplog.records or not code.startswith(b"\x7fELF"):
            wrong.append((stem, dtype.__name__, missing, caplog.messages))
    assert wrong == []


@nvrtc
def test_the_kernels_of_the_guide_compile(no_nvcc: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "adding-a-layer.md"
    block = re.search(r"^```cuda\n// cuda/(\w+)\.cu\n(.*?)^```", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block
    shutil.copytree(source.FOLDER, tmp_path / "cuda")
    (tmp_path / "cuda" / f"{block[1]}.cu").write_text(block[2], encoding="utf-8")
    monkeypatch.setattr(source, "FOLDER", tmp_path / "cuda")
    assert compiler.compiled(block[1], np.dtype(np.float32), (9, 0)).startswith(b"\x7fELF")
    assert len(source.signatures(block[1])) == 2


@nvrtc
def test_an_error_names_file_and_line(no_nvcc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = source.text("relu")
    monkeypatch.setattr(source, "text", lambda stem: text.replace("LOOP(", "LOUP(", 1))
    with pytest.raises(
        DeviceError,
        match=r"cuda/relu\.cu does not compile for REAL = float, sm_90:\nNVRTC [\d.]+:\n(.*\n)*cuda/.*\(\d+\): error",
    ):
        compiler.compiled("relu", np.dtype(np.float32), (9, 0))
