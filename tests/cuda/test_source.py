"""The .cu files: what the compilers get, and the house's rules for them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from minicaffe.cuda import source
from minicaffe.errors import DeviceError

FILES = sorted(path.stem for path in source.FOLDER.glob("*.cu"))


def test_includes_are_written_out_once_with_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "FOLDER", tmp_path)
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\nint a;\n')
    (tmp_path / "b.cuh").write_text("int b;\n")
    (tmp_path / "k.cu").write_text('// k\n#include "a.cuh"\n#include "b.cuh"\nint k;\n')
    lines = source.text.__wrapped__("k").splitlines()
    where = {}
    for line in lines:
        found = re.match(r'#line (\d+) "cuda/([\w.]+)"', line)
        if found:
            number, file = int(found[1]), found[2]
            continue
        if line.startswith("int"):
            where[line] = (file, number)
        number += 1
    assert where == {"int a;": ("a.cuh", 2), "int b;": ("b.cuh", 1), "int k;": ("k.cu", 4)}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_the_text_that_ships_preprocesses_without_warnings(tmp_path: Path) -> None:
    """nvcc gives its text to g++, whose warnings PyCUDA passes on; NVRTC's are in test_nvrtc.py, nvcc's in compile_all.py."""
    for stem in FILES:
        (tmp_path / f"{stem}.cu").write_text(source.text(stem))
    command = ["g++", "-E", "-Werror", "-Wall", "-DREAL=float", "-D__CUDACC__=1", "-x", "c++"]
    done = subprocess.run([*command, *tmp_path.iterdir()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_argument_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "FOLDER", tmp_path)
    (tmp_path / "types.cu").write_text(
        'extern "C" __global__ void __launch_bounds__(256) one(int n, const REAL* __restrict__ x, REAL scale,\n'
        "    unsigned long long bits, long long far, unsigned u, double d, float f) {}\n"
        'extern "C" __global__ void two(int* y) {}\n'
        "struct Pair {\n  int a, b;  // both\n  int sum() const { return a + b; }\n};\n"
        "struct Scaled {\n  int a, b;\n  double by;\n};\n"
        'extern "C" __global__ void three(int n, Pair p, Scaled s) {}\n'
    )
    assert source.signatures.__wrapped__("types") == {
        "one": ("i", "P", "REAL", "Q", "q", "I", "d", "f"),
        "two": ("P",),
        "three": ("i", "ii", "0diid0d"),
    }
    (tmp_path / "wrong.cu").write_text("__global__ void f(Mine m) {}")
    with pytest.raises(DeviceError, match=r'cuda/wrong.cu: a kernel\'s argument "Mine m" has a type that cannot be passed'):
        source.signatures.__wrapped__("wrong")


@pytest.mark.parametrize("stem", FILES)
def test_rules(stem: str) -> None:
    """Every file has kernels that C can name, says what it is, and needs no standard header."""
    text = (source.FOLDER / f"{stem}.cu").read_text()
    assert text.startswith("//")
    assert "#include <" not in text
    assert source.signatures(stem)
    assert text.count("__global__") == len(re.findall(r'extern "C" __global__', text))
