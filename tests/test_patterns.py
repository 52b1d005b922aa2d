"""Every regular expression of the package takes linear time for text made of the expression's own parts, repeated.

The modules' code tells the expressions and how each is used: `re.search` and its like with a constant, and methods of
compiled ones.
"""

from __future__ import annotations

import ast
import importlib
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import combinations, product
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from minicaffe.data.image_bytes import OTHERS
from minicaffe.errors import PrototxtError
from minicaffe.formats.lookalikes import LOOKALIKES
from minicaffe.formats.tokens import _TOKEN, Text, Tokens
from minicaffe.formats.weights import KINDS

try:
    parser = importlib.import_module("re._parser")
except ImportError:  # Python 3.10
    parser = importlib.import_module("sre_parse")

ROOT = Path(__file__).resolve().parents[1]
OPERATIONS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
FEW, MANY = 2000, 32_000
"""Repetitions: for a first look, and for the decision. MANY take less than 0.01 s in linear time, and seconds in quadratic."""
SUSPICIOUS, TOO_LONG = 0.0015, 0.25
"""Seconds of CPU time."""
TABLES: dict[str, Iterable[str | bytes]] = {
    "minicaffe.formats.lookalikes": LOOKALIKES,
    "minicaffe.formats.weights": KINDS.values(),
    "minicaffe.data.image_bytes": OTHERS,
}
"""Tables of expressions: modules loop over them with the variable `pattern`."""
EXAMPLES = {
    "minicaffe.training.snapshots": r"net_iter_(\d+)\.solverstate(\.h5)?",
    "minicaffe.formats.prototxt": r"\$\{(x|y)\}|\$(x|y)\b\$?",
    "minicaffe.data.clips": r"[^%]*%c[^%]*%0?\d?d[^%]*",
    "minicaffe.porting.retarget_text": "ab",
    "minicaffe.formats.tokens": "[\x00-\x1f]|[\n\t]",
}
"""An example of each expression that a function makes."""
STATEMENTS = (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)
OWN = ("minicaffe.cuda.source", "minicaffe.formats.forks", "minicaffe.cli.reference")
"""Modules whose expressions search the package's own files and texts alone."""
POOL = "a1 \n\t_\"\\'/.:{}#"
"""Characters to try for a class of characters."""


class Use(NamedTuple):
    """An expression and the operation that it is used for."""

    pattern: str | bytes
    flags: int
    operation: str

    def run(self, text: str) -> None:
        compiled: Any = re.compile(self.pattern, self.flags)
        given: Any = text.encode("utf-8") if isinstance(self.pattern, bytes) else text
        if self.pattern == _TOKEN.pattern:  # the loop ends at the first string that is not closed
            with suppress(PrototxtError):
                Tokens(Text(text, "net.prototxt"))
        elif self.operation in ("sub", "subn"):
            getattr(compiled, self.operation)(lambda found: found[0], given)
        elif found := getattr(compiled, self.operation)(given):
            for _ in found if self.operation == "finditer" else ():
                pass


@cache
def modules() -> dict[str, ast.Module]:
    folders = {"minicaffe": "minicaffe", "layers": "minicaffe.layers", "cuda": "minicaffe.cuda"}
    found = {}
    for folder, package in folders.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name != "__main__.py" and not any(part.is_symlink() for part in path.parents):
                inside = path.relative_to(ROOT / folder).with_suffix("").parts
                text = path.read_text(encoding="utf-8")
                if any(f".{operation}(" in text for operation in (*OPERATIONS, "compile")):
                    found[".".join((package, *inside)).removesuffix(".__init__")] = ast.parse(text)
    return found


def value(module: str, node: ast.expr) -> Any:
    """Return the value of names and constants of a module, and of re.compile; None for anything with variables."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    calls = [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]
    if not names <= defined(module) or set(calls) - {"re.compile", "re.escape"}:
        return None
    try:
        return eval(compile(ast.Expression(node), module, "eval"), vars(importlib.import_module(module)))
    except (AttributeError, NameError):  # of a class, or deleted
        return None


@cache
def defined(module: str) -> set[str]:
    """Return the names that a module binds by imports and assignments."""
    nodes = [node for each in modules()[module].body if isinstance(each, STATEMENTS) for node in ast.walk(each)]
    imported = {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return imported | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


@cache
def uses() -> tuple[dict[Use, str], list[str]]:
    """Return all uses with their places, and the places of those whose expression is not known."""
    found: dict[Use, str] = {}
    compiled: dict[Use, str] = {}
    unknown = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            place, operation = f"{module}:{node.lineno}", node.func.attr
            if ast.unparse(node.func) in {f"re.{each}" for each in (*OPERATIONS, "compile")}:
                patterns = expressions(module, node)
                unknown += [] if patterns else [place]
                into, operation = (compiled, "search") if operation == "compile" else (found, operation)
                into |= {Use(each, flags(module, node), operation): place for each in patterns}
            elif operation in OPERATIONS and isinstance(expression := value(module, node.func.value), re.Pattern):
                found[Use(expression.pattern, expression.flags & ~re.UNICODE, operation)] = place
    seen = {(use.pattern, use.flags) for use in found}
    return found | {use: place for use, place in compiled.items() if use[:2] not in seen}, unknown


def expressions(module: str, call: ast.Call) -> list[str | bytes]:
    if pattern := value(module, call.args[0]):
        return [pattern]
    return [*TABLES.get(module, ()), *([EXAMPLES[module]] if module in EXAMPLES else [])]


def flags(module: str, call: ast.Call) -> int:
    at = {"re.compile": 1, "re.search": 2, "re.match": 2, "re.fullmatch": 2}.get(ast.unparse(call.func), len(call.args))
    nodes = [*call.args[at:], *(each.value for each in call.keywords if each.arg == "flags")]
    return int(value(module, nodes[0])) if nodes else 0


def samples(items: Any) -> list[str]:
    """Return short texts that a parsed expression matches: the first by its first alternatives, then one for each other."""
    first, others = "", []
    for op, argument in items:
        some = of_item(str(op), argument) or [""]
        others += [first + each for each in some[1:]]
        first += some[0]
    return [first, *others]


def of_item(op: str, argument: Any) -> list[str]:
    if op in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        items = argument if op == "IN" else [(op, argument)]
        likely = [chr(each) for kind, each in items if str(kind) == "LITERAL"][:3]
        return [c for c in dict.fromkeys([*likely, *POOL, *(chr(i) for i in range(256))]) if holds(items, c)][:4]
    if op == "BRANCH":
        return [each for branch in argument[1] for each in samples(branch)]
    if op == "SUBPATTERN":
        return samples(argument[-1])
    if op.endswith("_REPEAT"):
        return [each * max(argument[0], 1) for each in samples(argument[2])]
    return []


CATEGORIES = {"DIGIT": str.isdigit, "SPACE": str.isspace, "WORD": lambda c: c.isalnum() or c == "_"}


def holds(items: Any, character: str) -> bool:
    """Return whether a class of characters has one."""
    negated = str(items[0][0]) in ("NEGATE", "NOT_LITERAL")
    for op, argument in items:
        name = str(argument).removeprefix("CATEGORY_")
        if (
            str(op) == "ANY"
            or (str(op) in ("LITERAL", "NOT_LITERAL") and argument == ord(character))
            or (str(op) == "RANGE" and argument[0] <= ord(character) <= argument[1])
            or (str(op) == "CATEGORY" and CATEGORIES[name.removeprefix("NOT_")](character) != name.startswith("NOT_"))
        ):
            return not negated
    return negated


def words(items: Any) -> list[list[Any]]:
    """Return an expression's items, with adjacent characters as one."""
    found: list[list[Any]] = []
    for item in items:
        if found and str(item[0]) == str(found[-1][-1][0]) == "LITERAL":
            found[-1].append(item)
        else:
            found.append([item])
    return found


def joined(some: list[list[Any]]) -> list[Any]:
    return [item for word in some for item in word]


def parts(items: Any) -> Iterator[str]:
    """Yield samples of all sequences in an expression, from each word to each later one."""
    each = words(items)
    for i, j in combinations(range(len(each) + 1), 2):
        yield from samples(joined(each[i:j]))
    for op, argument in items:
        if str(op) == "BRANCH":
            yield from (part for branch in argument[1] for part in parts(branch))
        elif str(op) == "SUBPATTERN" or str(op).endswith("_REPEAT"):
            yield from parts(argument[-1])


def singles(items: Any) -> Iterator[Any]:
    """Yield the classes of single characters in an expression."""
    for op, argument in items:
        if str(op) in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            yield argument if str(op) == "IN" else [(op, argument)]
        elif str(op) == "BRANCH":
            yield from (each for branch in argument[1] for each in singles(branch))
        elif str(op) == "SUBPATTERN" or str(op).endswith("_REPEAT"):
            yield from singles(argument[-1])


def hostile(use: Use) -> Iterator[tuple[str, str, str]]:
    """Yield beginnings, repeated parts, and ends."""
    text = use.pattern.decode("latin-1") if isinstance(use.pattern, bytes) else use.pattern
    parsed = parser.parse(text, use.flags)
    classes = list(singles(parsed))
    alike: dict[tuple[bool, ...], str] = {}  # one character for each class that the expression does not distinguish
    for character in [*POOL, *map(chr, range(128))]:
        alike.setdefault(tuple(holds(items, character) for items in classes), character)
    pairs = map("".join, product(sorted(alike.values(), key=str.isalnum)[:6], repeat=2))
    units = dict.fromkeys([*sorted((part for part in set(parts(parsed)) if part), key=len)[:60], *pairs])
    each = words(parsed)
    beginnings = dict.fromkeys(samples(joined(each[:i]))[0] for i in range(len(each)))
    yield from product(list(beginnings)[:6], units, ("", "\x00"))


class Slow(Exception):
    """CPU time is up."""


def seconds(use: Use, text: str, most: float) -> float:
    """Return the CPU time of a use, at most `most`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Slow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, most)
    start = time.process_time()
    try:
        use.run(text)
    except Slow:
        return most
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.process_time() - start


def slow(use: Use) -> str:
    """Return a text of MANY parts that takes too long, as an expression of Python; "" if there is none."""
    for begin, unit, end in hostile(use):
        few, many = (begin + unit * min(count, 8 * count // len(unit)) + end for count in (FEW, MANY))
        if seconds(use, few, 1) > SUSPICIOUS and all(seconds(use, many, TOO_LONG) >= TOO_LONG for _ in range(2)):
            return f"{begin!r} + {unit!r} many times + {end!r}"
    return ""


def test_every_expression_is_known() -> None:
    found, unknown = uses()
    assert not unknown, "EXAMPLES needs an example of each"
    assert len({use.pattern for use in found}) > 80


@pytest.mark.slow
def test_every_expression_takes_linear_time() -> None:
    of_files = {use: place for use, place in uses()[0].items() if place.partition(":")[0] not in OWN}
    assert not {f"{place}: {use.operation}: {text}" for use, place in of_files.items() if (text := slow(use))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "flags", "operation"),
    [(r"^\s*layers?\s*\{", re.M, "search"), (r"(a+)+b", 0, "match"), (r"Iteration \d+.* loss = ", 0, "search")],
)
def test_slow_expressions_are_found(pattern: str, flags: int, operation: str) -> None:
    assert slow(Use(pattern, flags, operation))
