"""The defaults in the header of a model's own generate_anchors.py. The file is read as data and never run.

    def generate_anchors(base_size=16, ratios=[0.5, 1, 2], scales=2**np.arange(3, 6)):

Such files are often Python 2, so the header alone is parsed, and the constants above it that it names.

read_anchors reads such a file for --anchors. Another formula makes other anchors of the same numbers, so it refuses functions
whose text differs from py-faster-rcnn's, except for comments, docstrings, spaces, and lines that print.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import operator
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
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
BY_HAND = "write the numbers in the prototxt's param_str, or as ANCHOR_SCALES, ANCHOR_RATIOS and ANCHOR_BASE_SIZE in a --cfg"
RUNS_IT = "--allow-module rpn.proposal_layer runs the model's own layer"
"""Ways around a file that cannot be read."""
HEADER = re.compile(r"^def generate_anchors\s*\(", re.MULTILINE)
HEADER_END = re.compile(r"\)\s*:")
CONSTANT = re.compile(r"^(\w+)[ \t]*=(?!=)", re.MULTILINE)
WORD = re.compile(r"\w+")
LONGEST = 2000
"""Most characters of a header, and of a constant."""
FUNCTION = re.compile(r"^def (\w+)\s*\(.*?(?=^\S(?<!\#)|\Z)", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r'"""(?:.*?)"""|\'\'\'(?:.*?)\'\'\'|#[^\n]*|^\s*print\b[^\n]*|\s+', re.MULTILINE | re.DOTALL)
FORMULAS = {
    "generate_anchors": "bc90dd8b39b20e9c",
    "_whctrs": "99c6c4061cbb72ff",
    "_mkanchors": "6114f4553cf689e5",
    "_ratio_enum": "2881b909633ebd48",
    "_scale_enum": "7487916f842fe634",
}
"""The beginning of digest_of each function of py-faster-rcnn's file."""
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
            header = _header(text := read_text(file, errors="replace"))
        except (OSError, Error):
            continue
        if header:
            numbers, unread = _defaults(header, text)
            if numbers or unread:
                return OwnDefaults(file, numbers, unread)
    return None


def read_anchors(path: str | os.PathLike[str]) -> dict[str, list[float]]:
    """Return the numbers of a model's generate_anchors.py by name: base_size, ratios and scales, without those it lacks.

    Raises Error for a file without the function, a default that is no number, and a function of another formula.
    """
    text = read_text(path, errors="replace")
    if not (header := _header(text)):
        raise Error(f"{path}: has no function generate_anchors with the defaults of its parameters; {BY_HAND}")
    line = text.count("\n", 0, text.index(header)) + 1
    numbers, unread = _defaults(header, text)
    for name, default in unread.items():
        at = line + header.count("\n", 0, next(word.start() for word in WORD.finditer(header) if word[0] == name))
        raise Error(f"{path}:{at}: the default {default} cannot be read without running the file; {BY_HAND}")
    if not numbers:
        raise Error(f"{path}:{line}: generate_anchors has no defaults of {', '.join(NAMES)}; {BY_HAND}")
    if not all(size % 1 == 0 for size in numbers.get("base_size", [])[:1]) or len(numbers.get("base_size", [0])) != 1:
        raise Error(f"{path}:{line}: base_size must be a whole number, got {numbers['base_size']}; {BY_HAND}")
    for name, place in _changed_functions(text, header):
        raise Error(f"{path}:{place}: {name} differs from py-faster-rcnn's, so these numbers make other anchors; {RUNS_IT}")
    return numbers


def _changed_functions(text: str, header: str) -> Iterator[tuple[str, int]]:
    """Yield the functions that make anchors and are not py-faster-rcnn's, with their lines."""
    for name, known in FORMULAS.items():
        if digest_of(text, header, name)[: len(known)] != known:
            found = _function(text, name)
            yield name, text.count("\n", 0, found.start() if found else text.index(header)) + 1


def digest_of(text: str, header: str, name: str) -> str:
    """Return the SHA-256 of one function of a file, of its text without LEFT_OUT and without generate_anchors' header."""
    found = _function(text, name)
    body = (found[0] if found else "").removeprefix(header if name == "generate_anchors" else "")
    return hashlib.sha256(LEFT_OUT.sub("", body).replace("xrange", "range").encode()).hexdigest()


def _function(text: str, name: str) -> re.Match[str] | None:
    return next((match for match in FUNCTION.finditer(text) if match[1] == name), None)


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


def _defaults(header: str, text: str) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the numeric defaults, and the text of the others. text: the file's."""
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
            values = np.atleast_1d(_value(_Constants(text).visit(copy.deepcopy(default))))
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


class _Constants(ast.NodeTransformer):
    """A transformer that replaces names with the expressions of a file's constants: lines that begin with NAME = ."""

    def __init__(self, text: str) -> None:
        self._text, self._seen = text, set[str]()

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = None if node.id in self._seen else _constant(self._text, node.id)
        if found is None:
            return node
        self._seen.add(node.id)
        replaced: ast.expr = self.visit(found)
        self._seen.remove(node.id)
        return replaced


def _constant(text: str, name: str) -> ast.expr | None:
    """Return the expression of a constant's last assignment, maybe of several lines, or None."""
    starts = [match.end() for match in CONSTANT.finditer(text) if match[1] == name]
    lines = text[starts[-1] :][:LONGEST].split("\n") if starts else []
    for end in range(1, len(lines) + 1):
        source = "\n".join(lines[:end])
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.parse(f"({source}\n)", mode="eval").body if source.strip() else None
    return None


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
