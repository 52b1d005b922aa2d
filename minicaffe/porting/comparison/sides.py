"""What stands beside a net in a comparison: arrays of an .npz, or of an ONNX model; and which names belong together.

A map is a text file with a line for each pair, A's layer or blob and B's name, and where B's axes stand in another order the
permutation that makes them A's:

    conv1    features.0
    pool5    block5_pool    0,3,1,2
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from minicaffe.errors import Error
from minicaffe.files import read_text
from minicaffe.formats.arrays import read_npz
from minicaffe.porting.onnx.session import Session

__all__ = ["Arrays", "Name", "Names", "axes_of", "read_map", "read_npz", "run_onnx"]

Path = str | os.PathLike[str]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Name:
    """B's name for something of A's, and the axes of B's array that make it A's, or ()."""

    name: str
    axes: tuple[int, ...] = ()

    def ours(self, array: NDArray[Any]) -> NDArray[Any]:
        """B's array with A's axes. Raises Error where it has others."""
        if not self.axes:
            return array
        if sorted(self.axes) != list(range(array.ndim)):
            raise Error(f'the axes {self.axes} given for "{self.name}" do not fit its shape {array.shape}')
        ours: NDArray[Any] = array.transpose(self.axes)
        return ours


Names = Mapping[str, "str | Name"]


def read_map(path: Path) -> dict[str, Name]:
    """The pairs of a map file. Raises Error that names the line."""
    names: dict[str, Name] = {}
    try:
        lines = read_text(path).splitlines()
    except UnicodeDecodeError as error:
        raise Error(f"{path}: not a text file") from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3):
            raise Error(
                f"{path}:{number}: write a pair of names, and axes like 0,3,1,2 where they are in another order: {line}"
            )
        names[words[0]] = Name(words[1], axes_of(words[2], f"{path}:{number}") if len(words) == 3 else ())
    return names


def axes_of(text: str, place: str) -> tuple[int, ...]:
    """ "0,3,1,2" as numbers. Raises Error at place."""
    try:
        axes = tuple(int(word) for word in text.split(","))
    except ValueError:
        axes = ()
    if not axes or sorted(axes) != list(range(len(axes))):
        raise Error(f"{place}: {text} is no order of axes such as 0,3,1,2")
    return axes


def run_onnx(path: Path, inputs: Arrays) -> Arrays:
    """Every tensor that an ONNX model computes from A's inputs, by name, the inputs too. Raises Error."""
    session = Session(path, inner=True)
    feeds = _feeds(path, list(session.inputs), inputs)
    return {**feeds, **session.run(feeds)}


def _feeds(path: Path, wanted: list[str], inputs: Arrays) -> Arrays:
    """inputs by the model's names: its own, or one for one."""
    if len(wanted) == len(inputs) == 1:
        return {wanted[0]: next(iter(inputs.values()))}
    lacking = [name for name in wanted if name not in inputs]
    if lacking:
        raise Error(
            f"{path}: its inputs {', '.join(lacking)} are none of A's ({', '.join(inputs)}): --map says which are the same"
        )
    return {name: inputs[name] for name in wanted}
