"""Functions and classes that are copied into written PyTorch source. A form requests one by its name with `Source.part`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources


@dataclass(frozen=True)
class Part:
    """The text of a function or class, and the names of other parts in it."""

    text: str
    needs: tuple[str, ...]


@lru_cache(maxsize=1)
def parts() -> dict[str, Part]:
    """Return all parts by name, each after those that it needs."""
    folder = resources.files(__package__)
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".py") and file.name != "__init__.py")
    found: dict[str, Part] = {}
    for text in ((folder / name).read_text(encoding="utf-8") for name in names):
        lines = text.splitlines(keepends=True)
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                words = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
                needs = tuple(name for name in found if name in words)
                found[node.name] = Part("".join(lines[start - 1 : node.end_lineno]), needs)
    return found
