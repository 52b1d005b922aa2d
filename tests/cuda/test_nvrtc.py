"""NVRTC in place of nvcc: needs no GPU, but cuda-core, cuda-bindings and nvidia-cuda-nvrtc (the extra gpu-cu13)."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minicaffe.cuda import compile as compiler
from minicaffe.cuda import source
from minicaffe.errors import DeviceError

FILES = sorted(path.stem for path in source.FOLDER.glob("*.cu"))


def why_not() -> str:
    try:
        compiler.nvrtc_version()
    except DeviceError as error:
        return str(error)
    return ""


WHY_NOT = why_not()
nvrtc = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler, "find_nvcc", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@nvrtc
@pytest.mark.parametrize("stem", FILES)
def test_every_file_compiles(no_nvcc: None, stem: str) -> None:
    for dtype in (np.float32, np.float64):
        code = compiler.compiled(stem, np.dtype(dtype), (9, 0))
        assert code.startswith(b"\x7fELF")
        for name in source.signatures(stem):
            assert name.encode() in code


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
        DeviceError, match=r"cuda/relu\.cu does not compile for REAL = float, sm_90:\n(.*\n)*cuda/.*\(\d+\): error"
    ):
        compiler.compiled("relu", np.dtype(np.float32), (9, 0))


def test_what_compiled_is_kept(no_nvcc: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a compiler that counts: one call for each text, type and GPU, also where the folder cannot be made."""
    calls: list[str] = []

    class Program:
        def __init__(self, text: str, language: str, options: SimpleNamespace) -> None:
            self.code = f"{options.arch} {options.define_macro[1]} {len(text)}".encode()

        def compile(self, target: str) -> SimpleNamespace:
            calls.append(target)
            return SimpleNamespace(code=self.code)

    core = SimpleNamespace(Program=Program, ProgramOptions=SimpleNamespace)
    real = importlib.import_module

    def imported(name: str) -> Any:
        folders = SimpleNamespace(user_cache_path=lambda name: tmp_path / name)
        return {"cuda.core": core, "platformdirs": folders}.get(name) or real(name)

    monkeypatch.setattr(compiler.importlib, "import_module", imported)
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: "NVRTC 1")
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    made = [compiler.compiled("relu", dtype, (9, 0)) for dtype in (single, double, single, double)]
    assert made[:2] == made[2:]
    assert made[0].startswith(b"sm_90 float ")
    assert len(calls) == 2
    compiler.compiled("relu", single, (8, 0))
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: "NVRTC 2")
    compiler.compiled("relu", single, (8, 0))
    assert len(calls) == 4
    assert len(list((tmp_path / "minicaffe").iterdir())) == 4
    (tmp_path / "file").write_text("no folder")
    tmp_path = tmp_path / "file"
    assert [compiler.compiled("relu", single, (7, 5)) for _ in range(2)] == [b"sm_75" + made[0][5:]] * 2
    assert len(calls) == 6


def test_neither_nvcc_nor_nvrtc(no_nvcc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(DeviceError, match=r'neither nvcc \(the CUDA toolkit\) nor NVRTC \(pip install "minicaffe\[gpu-cu13\]"'):
        compiler.compiled("relu", np.dtype(np.float32), (9, 0))
