"""Builds the CPU test device into a folder: libcuda.so.1 and the stand-in nvcc.

Needs g++ and CUDA's cuda.h, which an nvcc has beside it and which `pip install nvidia-cuda-runtime` brings without one.

usage: build.py FOLDER
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROFILER = {"cuProfilerStart", "cuProfilerStop", "cuProfilerInitialize"}  # of cudaProfiler.h
STUB = '__attribute__((weak)) int {0}(void) {{ return missing("{0}"); }}\n'
MISSING = """#include <stdio.h>
static int missing(const char* name) { fprintf(stderr, "CPU test device: %s is not built\\n", name); return 801; }
"""


class CannotBuildError(Exception):
    """Something that the build needs is not on this computer."""


def include_folder() -> Path:
    """Where cuda.h is: $CUDA_ROOT, beside nvcc, /usr/local/cuda, or the package nvidia-cuda-runtime of this Python."""
    nvcc = shutil.which("nvcc")
    roots = [os.environ.get("CUDA_ROOT"), nvcc and Path(nvcc).resolve().parent.parent, "/usr/local/cuda"]
    folders = [Path(root, "include") for root in roots if root]
    folders += [folder for path in sys.path for folder in sorted(Path(path or ".").glob("nvidia/*/include"))]
    for folder in folders:
        if (folder / "cuda.h").exists():
            return folder
    raise CannotBuildError("cuda.h is not here: install CUDA's toolkit, or pip install nvidia-cuda-runtime")


def driver_symbols(include: Path) -> set[str]:
    """Every function of the driver API, in all its versions."""
    header = include / "cuda.h"
    text = run("g++", "-E", "-P", "-x", "c++", str(header))
    names = set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", text))
    return names | set(re.findall(r"\b(cu[A-Z]\w+_v\d+(?:_ptsz|_ptds)?)\b", header.read_text())) | PROFILER


def aliases(include: Path) -> str:
    """Which version each name of a function stands for, as a C array of pairs: cuda.h's macros."""
    text = (include / "cuda.h").read_text()
    found = re.findall(r"^ *#define +(cu[A-Z]\w+) +(?:__CUDA_API_PT\w+\()?(cu[A-Z]\w+)\)?$", text, re.MULTILINE)
    pairs = "".join(f'    {{"{name}", "{version}"}},\n' for name, version in dict(found).items())
    return f"static const char* const aliases[][2] = {{\n{pairs}}};\n"


def run(*command: str) -> str:
    """The output of a command that must succeed."""
    if not shutil.which(command[0]):
        raise CannotBuildError(f"{command[0]} is not on this computer")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuildError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def build(folder: Path) -> None:
    """libcuda.so.1 (and libcuda.so, to link with) and nvcc in folder."""
    include = include_folder()
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    stubs = folder / "stubs.c"
    stubs.write_text(MISSING + "".join(STUB.format(name) for name in sorted(driver_symbols(include))))
    run("gcc", "-O0", "-w", "-fPIC", "-c", str(stubs), "-o", str(folder / "stubs.o"))
    (folder / "aliases.h").write_text(aliases(include))
    sources = [str(HERE / "fakecuda.cpp"), str(folder / "stubs.o")]
    library = str(folder / "libcuda.so.1")
    link = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{include}", f"-I{folder}"]
    run("g++", "-std=c++20", "-O2", "-Wall", "-Wextra", *link, *sources, "-o", library)
    (folder / "libcuda.so").unlink(missing_ok=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    for name in ("cpu_device.h", "kernel_entry.h"):
        shutil.copy(HERE / name, folder)
    compiler = folder / "nvcc"
    compiler.write_text(f"#!{sys.executable} -IS\n{(HERE / 'nvcc.py').read_text()}")
    compiler.chmod(0o755)


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]))
    except CannotBuildError as error:
        sys.exit(f"build.py: {error}")
