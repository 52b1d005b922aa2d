"""The other side of a comparison: the arrays of an .npz or of an ONNX model, and the map of names.

A map is a text file with a line per pair: A's layer or blob, B's name and, if B's axes have another order, the permutation to
A's order:

    conv1    features.0
    pool5    block5_pool    0,3,1,2
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from minicaffe.blob import Array, Arrays
from minicaffe.errors import Error, ways
from minicaffe.files import read_text
from minicaffe.porting.onnx.session import Session

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Name:
    """B's name for a layer or blob of A, and the permutation of B's axes to A's order, or ()."""

    name: str
    axes: tuple[int, ...] = ()

    def ours(self, array: Array) -> Array:
        """Return B's array with A's axes. Raises Error if the permutation does not fit."""
        if not self.axes:
            return array
        if sorted(self.axes) != list(range(array.ndim)):
            raise Error(f'the axes {self.axes} given for "{self.name}" do not fit its shape {array.shape}')
        ours: Array = array.transpose(self.axes)
        return ours


Names = Mapping[str, "str | Name"]


def read_map(path: Path) -> dict[str, Name]:
    """Return the pairs of a map file. Raises Error, which names the line."""
    names: dict[str, Name] = {}
    try:
        lines = read_text(path).splitlines()
    except UnicodeDecodeError as error:
        raise Error(f"{path}: not a text file") from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if len(words) in (2, 3):
            names[words[0]] = Name(words[1], axes_of(words[2], f"{path}:{number}") if len(words) == 3 else ())
        elif words:
            raise Error(f"{path}:{number}: write a pair of names, and axes like 0,3,1,2 if B has another order: {line}")
    return names


def axes_of(text: str, place: str) -> tuple[int, ...]:
    """Return "0,3,1,2" as numbers. Raises Error, which names place."""
    try:
        axes = tuple(int(word) for word in text.split(","))
    except ValueError:
        axes = ()
    if not axes or sorted(axes) != list(range(len(axes))):
        raise Error(f"{place}: {text} is not an order of axes, such as 0,3,1,2")
    return axes


def run_onnx(path: Path, inputs: Arrays) -> Arrays:
    """Return A's inputs and every tensor that an ONNX model computes from them, by name. Raises Error."""
    session = Session(path, inner=True)
    wanted = list(session.inputs)
    if len(wanted) == len(inputs) == 1:  # with one input the names do not matter
        inputs = dict(zip(wanted, inputs.values()))
    lacking = [name for name in wanted if name not in inputs]
    if lacking:
        given = ", ".join(inputs)
        way = ways(": pair the names with --map")
        raise Error(f"{path}: its inputs {', '.join(lacking)} are not among A's ({given}){way}")
    feeds = {name: inputs[name] for name in wanted}
    return {**feeds, **session.run(feeds)}
