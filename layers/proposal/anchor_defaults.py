"""The defaults in the header of a model's own generate_anchors.py. The file is read as data and never run.

    def generate_anchors(base_size=16, ratios=[0.5, 1, 2], scales=2**np.arange(3, 6)):

Such files are often Python 2, so the header alone is parsed.
"""

from __future__ import annotations

import ast
import copy
import operator
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minicaffe.errors import Error
from minicaffe.files import read_text

FOLDERS = ("", "rpn", "lib/rpn")
"""Places of the file below a folder; py-faster-rcnn has lib/rpn."""
HIGHEST = 5
"""Most folders above the prototxt to search. py-faster-rcnn has models/DATA/NET/METHOD/test.prototxt."""
MOST = 10_000
"""Most numbers in a default."""
RATIOS, SCALES = [0.5, 1, 2], [8, 16, 32]
"""The defaults of py-faster-rcnn."""
NAMES = ("base_size", "ratios", "scales")
"""The parameters that make the anchors."""
CALLS = {"range": "range", "xrange": "range"}
CALLS |= {f"{module}.{name}": name for module in ("np", "numpy") for name in ("array", "arange")}
HEADER = re.compile(r"^def generate_anchors\s*\(", re.MULTILINE)
HEADER_END = re.compile(r"\)\s*:")
LONGEST = 2000
"""Most characters of a header."""
OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


class OwnDefaults(NamedTuple):
    """A generate_anchors.py: its numeric defaults by name, and the text of its other defaults."""

    file: Path
    numbers: Mapping[str, list[float]]
    unread: Mapping[str, str]


def own_defaults(prototxt: str | os.PathLike[str]) -> OwnDefaults | None:
    """Return the nearest generate_anchors.py in the prototxt's repository with its defaults, or None."""
    if not os.path.isfile(prototxt):  # the net was given as text
        return None
    for file in _places(Path(prototxt).absolute().parent):
        try:
            header = _header(read_text(file, errors="replace"))
        except (OSError, Error):
            continue
        if header:
            numbers, unread = _defaults(header)
            if numbers or unread:
                return OwnDefaults(file, numbers, unread)
    return None


def _header(text: str) -> str:
    """Return the function's header, maybe of several lines, or ""."""
    if not (start := HEADER.search(text)):
        return ""
    text = text[start.start() : start.start() + LONGEST]
    end = HEADER_END.search(text, start.end() - start.start())
    return text[: end.end()] if end else ""


def fitting(
    own: Mapping[str, list[float]], values: Mapping[str, Any], keys: Collection[str], count: int
) -> dict[str, Any] | None:
    """Return param_str's values with those of the file's defaults that make this many anchors at a position, or None.

    keys: the keys that the layer knows. The scales may also be proposal_layer.py's own, which the file does not change.
    """
    for scales in (own.get("scales", SCALES), SCALES):
        given = {"scales": scales, "ratios": own.get("ratios", RATIOS), **values}
        if "base_size" in own and own["base_size"] != [16]:
            given = {"base_size": own["base_size"][0], **given}
        if len(given["scales"]) * len(given["ratios"]) == count and set(given) - set(values) <= set(keys):
            return {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
    return None


def _places(folder: Path) -> Iterator[Path]:
    for parent in (folder, *folder.parents[:HIGHEST]):
        for below in FOLDERS:
            yield parent / below / "generate_anchors.py"


def _defaults(header: str) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the numeric defaults, and the text of the others."""
    try:
        (function,) = ast.parse(f"{header} pass").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}, {}
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    found, unread = dict[str, list[float]](), dict[str, str]()
    for argument, default in zip(arguments, function.args.defaults, strict=True):
        if argument.arg not in NAMES:
            continue
        try:
            values = np.atleast_1d(_value(default))
        except (TypeError, ValueError, ArithmeticError, RecursionError):
            values = np.zeros((0, 0))
        if values.ndim == 1 and np.all(np.isfinite(values) & (values > 0)):
            found[argument.arg] = [int(value) if value == int(value) else float(value) for value in values]
        else:
            unread[argument.arg] = f"{argument.arg}={ast.get_source_segment(header, default)}"
    return found, unread


def _value(node: ast.expr) -> Any:
    """Return the number, list or array of an expression. Raises ValueError for any other code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return np.float64(node.value)
    if isinstance(node, ast.List | ast.Tuple):
        return [float(_value(item)) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_operand(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        with np.errstate(all="ignore"):
            value = OPERATORS[type(node.op)](_operand(node.left), _operand(node.right))
        if isinstance(node.op, ast.Div) and _is_whole(node) and np.any(value != np.floor(value)):
            raise ValueError("Python 2 and 3 divide whole numbers differently")
        return value
    if isinstance(node, ast.ListComp):
        return _comprehended(node)
    if isinstance(node, ast.Call) and not node.keywords:
        return _called(ast.unparse(node.func), [_value(argument) for argument in node.args])
    raise ValueError("not a number")


def _operand(node: ast.expr) -> Any:
    value = _value(node)
    if isinstance(value, list):
        raise ValueError("Python repeats and joins lists")
    return value


def _comprehended(node: ast.ListComp) -> list[float]:
    """Return the list that [EXPRESSION for NAME in NUMBERS] makes."""
    (loop,) = node.generators  # raises ValueError for several
    if loop.ifs or not isinstance(loop.target, ast.Name) or any(isinstance(part, ast.ListComp) for part in ast.walk(node.elt)):
        raise ValueError("not a simple list comprehension")
    return [float(_value(_Replacing(loop.target.id, item).visit(copy.deepcopy(node.elt)))) for item in _value(loop.iter)]


class _Replacing(ast.NodeTransformer):
    """A transformer that replaces a name with a number."""

    def __init__(self, name: str, number: float) -> None:
        self._name, self._number = name, int(number) if number == int(number) else float(number)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._number) if node.id == self._name else node


def _called(function: str, values: list[Any]) -> Any:
    called = CALLS.get(function)
    if called == "array" and len(values) == 1:
        return np.array(values[0])
    if called in ("arange", "range") and 1 <= len(values) <= 3 and all(np.ndim(value) == 0 for value in values):
        start, stop, step = (*values, 1.0) if len(values) == 2 else values if len(values) == 3 else (0.0, values[0], 1.0)
        if step and 0 <= (stop - start) / step <= MOST:
            numbers = np.arange(start, stop, step)
            return numbers.tolist() if called == "range" else numbers  # a range is not an array and has no arithmetic
    raise ValueError(f"{function} is not evaluated")


def _is_whole(node: ast.expr) -> bool:
    return all(isinstance(part.value, int) for part in ast.walk(node) if isinstance(part, ast.Constant))
