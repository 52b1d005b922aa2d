"""The .cu files as the compilers get them: includes written out, so that one text goes to nvcc and to NVRTC.

A kernel's argument types are read from its own signature: they are written down once, in the .cu file.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from minicaffe.errors import DeviceError

FOLDER = Path(__file__).resolve().parent

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)")
_FORMATS = {"int": "i", "unsigned": "I", "long long": "q", "unsigned long long": "Q", "float": "f", "double": "d"}


@functools.cache
def text(stem: str) -> str:
    """cuda/<stem>.cu with its includes written out; #line directives keep every file's own line numbers."""
    return _expanded(FOLDER / f"{stem}.cu", set())


def _expanded(path: Path, seen: set[Path]) -> str:
    seen.add(path)
    source = path.read_text()

    def included(match: re.Match[str]) -> str:
        other = FOLDER / match[1]
        after = source.count("\n", 0, match.start()) + 2
        inside = "" if other in seen else _expanded(other, seen)
        return f'{inside}\n#line {after} "cuda/{path.name}"'

    return f'#line 1 "cuda/{path.name}"\n' + _INCLUDE.sub(included, source)


@functools.cache
def signatures(stem: str) -> dict[str, tuple[str, ...]]:
    """{kernel: the type of each argument}: "P" for a pointer, "REAL", or a letter of PyCUDA's prepare."""
    return {name: tuple(_format(a, stem) for a in arguments.split(",")) for name, arguments in _KERNEL.findall(text(stem))}


def _format(argument: str, stem: str) -> str:
    if "*" in argument:
        return "P"
    words = [word for word in argument.split() if word not in ("const", "__restrict__")][:-1]
    kind = " ".join(words)
    if kind == "REAL":
        return "REAL"
    if kind not in _FORMATS:
        raise DeviceError(f'cuda/{stem}.cu: a kernel\'s argument "{argument.strip()}" has a type that cannot be passed')
    return _FORMATS[kind]
