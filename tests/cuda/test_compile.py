"""Which compiler makes a kernel's machine code, and how that is kept; with compilers that only count."""

from __future__ import annotations

import importlib
import os
import re
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minicaffe.cuda import compile as compiling
from minicaffe.cuda import compilers, source
from minicaffe.cuda.compilers import Compiler, RefusedError
from minicaffe.errors import DeviceError, install

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


class Fake:
    """A compiler that refuses the texts with the word in refuses."""

    def __init__(self, version: str, refuses: str = "%%%") -> None:
        self.version, self.refuses, self.calls = version, refuses, 0

    def compile(self, text: str, real: str, arch: str) -> bytes:
        self.calls += 1
        if self.refuses in text:
            raise RefusedError(f"{self.refuses}: no such thing")
        return f"{self.version} {arch} {real} {len(text)}".encode()

    def made(self) -> Compiler:
        return Compiler(self.version, self.compile)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache folder of a user without a compiler of their own."""
    real, folders = importlib.import_module, SimpleNamespace(user_cache_path=lambda name: tmp_path / "cache" / name)
    imported = {"platformdirs": folders}
    monkeypatch.setattr(compiling.importlib, "import_module", lambda name: imported.get(name) or real(name))
    monkeypatch.delenv("MINICAFFE_NVCC", raising=False)
    return tmp_path / "cache" / "minicaffe"


def use(monkeypatch: pytest.MonkeyPatch, *fakes: Fake) -> None:
    monkeypatch.setattr(compiling, "compilers", lambda: [fake.made() for fake in fakes])


def test_what_compiled_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for each text, type, GPU and compiler."""
    first = Fake("NVRTC 1")
    use(monkeypatch, first)
    made = [compiling.compiled("relu", dtype, (9, 0)) for dtype in (SINGLE, DOUBLE, SINGLE, DOUBLE)]
    assert made[:2] == made[2:]
    assert made[0].startswith(b"NVRTC 1 sm_90 float ")
    compiling.compiled("relu", SINGLE, (8, 0))
    assert first.calls == 3
    use(monkeypatch, Fake("NVRTC 2"))
    assert compiling.compiled("relu", SINGLE, (8, 0)).startswith(b"NVRTC 2 sm_80")
    assert len(list(folder.iterdir())) == 4
    monkeypatch.setattr(source, "text", lambda stem: "another")
    assert compiling.compiled("relu", SINGLE, (8, 0)).endswith(b" 7")


def test_a_cache_that_cannot_be_written_costs_time_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake("NVRTC 1")
    use(monkeypatch, fake)
    folder.parent.mkdir()
    folder.write_text("no folder")
    assert len({compiling.compiled("relu", SINGLE, (7, 5)) for _ in range(2)}) == 1
    assert fake.calls == 2


def test_a_process_that_ends_while_it_writes_leaves_nothing_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake("NVRTC 1")
    use(monkeypatch, fake)

    def ends(path: Path, code: bytes) -> None:
        with path.open("wb") as file:
            file.write(code[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_bytes", ends)
        compiling.compiled("relu", SINGLE, (9, 0))
    assert not [path for path in folder.iterdir() if path.suffix == ".cubin"]
    assert compiling.compiled("relu", SINGLE, (9, 0)).startswith(b"NVRTC 1 sm_90 float")


def test_the_other_compiler_where_one_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Fake("NVRTC 1", refuses="LOOP"), Fake("nvcc 1")
    use(monkeypatch, first, second)
    assert compiling.compiled("relu", SINGLE, (9, 0)).startswith(b"nvcc 1 ")
    assert "cuda/relu.cu is compiled by nvcc 1" in caplog.text
    assert "LOOP: no such thing" in caplog.text
    use(monkeypatch, Fake("NVRTC 1", refuses="LOOP"), Fake("nvcc 2", refuses="extern"))
    with pytest.raises(
        DeviceError, match=r"cuda/relu.cu does not compile for REAL = float, sm_90:\nNVRTC 1:\nLOOP: (.|\n)*nvcc 2:\nex"
    ):
        compiling.compiled("relu", SINGLE, (9, 0))


def test_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC first; nvcc first where the user names one."""
    monkeypatch.setattr(compilers, "nvrtc_version", lambda: "13.5")
    monkeypatch.setattr(compilers, "nvcc_version", lambda nvcc: "release 13.0")
    monkeypatch.setattr(compilers, "find_nvcc", lambda: "/bin/nvcc")
    monkeypatch.delenv("MINICAFFE_NVCC", raising=False)
    assert [found.version for found in compilers.compilers()] == ["NVRTC 13.5", "/bin/nvcc: release 13.0"]
    monkeypatch.setenv("MINICAFFE_NVCC", "/bin/nvcc")
    assert [found.version for found in compilers.compilers()] == ["/bin/nvcc: release 13.0", "NVRTC 13.5"]
    monkeypatch.setattr(compilers, "find_nvcc", lambda: None)
    assert [found.version for found in compilers.compilers()] == ["NVRTC 13.5"]


def test_neither_nvcc_nor_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "find_nvcc", lambda: None)
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    nvrtc = rf"NVRTC is not installed \({re.escape(install('gpu-cu13'))}.*"
    with pytest.raises(DeviceError, match=rf"no compiler for the kernels: {nvrtc}; nvcc \(the CUDA toolkit\) is not found"):
        compilers.compilers()


def test_nvcc_is_called_in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a stand-in that says what it was given; it refuses double."""
    script = tmp_path / "nvcc"
    script.write_text(
        '#!/bin/sh\ncase "$*" in --version) echo "release 1"; exit;; *REAL=double*) echo "kernel.cu(1): error"; exit 2;; esac\n'
        'echo "$*" > kernel.cubin; cat kernel.cu >> kernel.cubin; echo "a warning" >&2\n'
    )
    script.chmod(stat.S_IRWXU)
    monkeypatch.setenv("MINICAFFE_NVCC", str(script))
    before = os.listdir()
    nvcc = compilers.compilers()[0]
    assert nvcc.version == f"{script}: release 1"
    said = nvcc.compile("the text", "float", "sm_90").decode()
    assert said == "--cubin -std=c++17 -arch=sm_90 -DREAL=float -fmad=false kernel.cu\nthe text"
    with pytest.raises(RefusedError, match=r"kernel.cu\(1\): error"):
        nvcc.compile("the text", "double", "sm_90")
    assert os.listdir() == before


def test_an_nvcc_that_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "nvcc"
    script.write_text("#!/bin/sh\n")
    script.chmod(stat.S_IRWXU)
    monkeypatch.setenv("MINICAFFE_NVCC", str(script))
    nvcc: Any = compilers.compilers()[0]
    with pytest.raises(RefusedError, match=r"kernel\.cubin"):
        nvcc.compile("the text", "float", "sm_90")
