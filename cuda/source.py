"""The .cu files as the compilers read them: with their includes inserted, so nvcc and NVRTC get the same text.

The types of a kernel's arguments are read from its signature, and a struct's from its members: only the .cu file lists them.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from minicaffe.errors import DeviceError

FOLDER = Path(__file__).resolve().parent

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)")
_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_MEMBERS = re.compile(r"^  (int|double) ([\w, ]+);", re.MULTILINE)
_FORMATS = {"int": "i", "unsigned": "I", "long long": "q", "unsigned long long": "Q", "float": "f", "double": "d"}


@functools.cache
def text(stem: str) -> str:
    """Return cuda/<stem>.cu with its includes inserted. #line directives keep every file's line numbers."""
    return _expanded(FOLDER / f"{stem}.cu", set())


def _expanded(path: Path, seen: set[Path]) -> str:
    seen.add(path)
    source = path.read_text().replace("#pragma once", "")  # a pragma for headers, which `seen` replaces

    def included(match: re.Match[str]) -> str:
        other = FOLDER / match[1]
        after = source.count("\n", 0, match.start()) + 2  # the line after the include; lines count from 1
        inside = "" if other in seen else _expanded(other, seen)
        return f'{inside}\n#line {after} "cuda/{path.name}"'

    return f'#line 1 "cuda/{path.name}"\n' + _INCLUDE.sub(included, source)


@functools.cache
def signatures(stem: str) -> dict[str, tuple[str, ...]]:
    """Return the type of each argument of each kernel, by name.

    A type is "REAL", or letters of Python's struct module, one for each member of a struct.
    """
    formats = _FORMATS | {name: _struct_format(body) for name, body in _STRUCT.findall(text(stem))}
    kernels = _KERNEL.findall(text(stem))
    return {name: tuple(_format(a, stem, formats) for a in arguments.split(",")) for name, arguments in kernels}


def _struct_format(body: str) -> str:
    letters = "".join(_FORMATS[kind] * len(names.split(",")) for kind, names in _MEMBERS.findall(body))
    return f"0d{letters}0d" if "d" in letters else letters  # 0d at both ends: a struct with a double is aligned as one


def _format(argument: str, stem: str, formats: dict[str, str]) -> str:
    if "*" in argument:
        return "P"
    words = [word for word in argument.split() if word not in ("const", "__restrict__")][:-1]
    kind = " ".join(words)
    if kind == "REAL":
        return "REAL"
    if not formats.get(kind):
        raise DeviceError(f'cuda/{stem}.cu: a kernel\'s argument "{argument.strip()}" has a type that cannot be passed')
    return formats[kind]
