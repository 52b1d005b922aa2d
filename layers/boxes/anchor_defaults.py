"""The defaults in the header of a model's own generate_anchors.py, read as data: the file is never run.

    def generate_anchors(base_size=16, ratios=[0.5, 1, 2], scales=2**np.arange(3, 6)):

Such files are often Python 2, so the header alone is parsed.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minicaffe.errors import Error
from minicaffe.files import read_text

FOLDERS = ("", "rpn", "lib/rpn")
"""Places of the file below a folder; py-faster-rcnn has lib/rpn."""
HIGHEST = 5
"""Folders above the prototxt that are looked into; py-faster-rcnn has models/DATA/NET/METHOD/test.prototxt."""
MOST = 10_000
"""Numbers in a default."""
RATIOS, SCALES = [0.5, 1, 2], [8, 16, 32]
"""py-faster-rcnn's."""
Defaults = Mapping[str, "list[float]"]
HEADER = re.compile(r"^def generate_anchors\s*\(", re.MULTILINE)
HEADER_END = re.compile(r"\)\s*:")
LONGEST = 2000
"""Characters of a header."""
OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def own_defaults(prototxt: str | os.PathLike[str]) -> tuple[Path, Defaults] | None:
    """Return the nearest generate_anchors.py of the prototxt's repository and its defaults by name; None without one.

    A default that is anything but numbers is left out.
    """
    if not os.path.isfile(prototxt):  # a net given as text
        return None
    for file in _places(Path(prototxt).absolute().parent):
        try:
            header = _header(read_text(file, errors="replace"))
        except (OSError, Error):
            continue
        if header and (found := _defaults(header)):
            return file, found
    return None


def _header(text: str) -> str:
    """Return the first line of the function, which may be several; "" without one."""
    if not (start := HEADER.search(text)):
        return ""
    text = text[start.start() : start.start() + LONGEST]
    end = HEADER_END.search(text, start.end() - start.start())
    return text[: end.end()] if end else ""


def fitting(own: Defaults, values: Mapping[str, Any], keys: Collection[str], count: int) -> dict[str, Any] | None:
    """Return param_str's values with the file's defaults that make this many anchors at a position; None if none do.

    keys: the keys that the layer knows. The scales may also be proposal_layer.py's own, which the file's do not change.
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


def _defaults(header: str) -> Defaults:
    try:
        (function,) = ast.parse(f"{header} pass").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    found = {}
    for argument, default in zip(arguments, function.args.defaults, strict=True):
        try:
            values = np.atleast_1d(_value(default))
        except (TypeError, ValueError, ArithmeticError, RecursionError):
            continue
        if values.ndim == 1 and np.all(np.isfinite(values) & (values > 0)):
            found[argument.arg] = [int(value) if value == int(value) else float(value) for value in values]
    return found


def _value(node: ast.expr) -> Any:
    """Return the number, list or array of an expression. Raises ValueError for all other code."""
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
    if isinstance(node, ast.Call) and not node.keywords:
        return _called(ast.unparse(node.func), [_value(argument) for argument in node.args])
    raise ValueError("not a number")


def _operand(node: ast.expr) -> Any:
    value = _value(node)
    if isinstance(value, list):
        raise ValueError("Python repeats and joins lists")
    return value


def _called(function: str, values: list[Any]) -> Any:
    if function == "np.array" and len(values) == 1:
        return np.array(values[0])
    if function == "np.arange" and 1 <= len(values) <= 3 and all(np.ndim(value) == 0 for value in values):
        start, stop, step = (*values, 1.0) if len(values) == 2 else values if len(values) == 3 else (0.0, values[0], 1.0)
        if step and 0 <= (stop - start) / step <= MOST:
            return np.arange(start, stop, step)
    raise ValueError(f"{function} is not evaluated")


def _is_whole(node: ast.expr) -> bool:
    return all(isinstance(part.value, int) for part in ast.walk(node) if isinstance(part, ast.Constant))
