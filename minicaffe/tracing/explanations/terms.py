"""The terms of a sum as arrays, and the text of numbers, indices and aligned tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, overload

import numpy as np

from minicaffe.blob import Array

ROWS = 16
"""Rows of a table that are shown by default."""

COLUMNS = 12
"""Columns of a grid that are shown."""


def number(value: Any) -> str:
    """Return a number as text with 6 digits: 1, 2.5, 0.333333, 1.2e-07."""
    if isinstance(value, int | np.integer):
        return str(value)
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e6 else f"{value:.6g}"


def exact(value: Any) -> str:
    """Return a number as text with all digits of a float32, or 10 of a float64."""
    # the shortest text that reads back as this float32
    if isinstance(value, np.float32) and np.isfinite(value) and 1e-5 <= abs(value) < 1e7:
        return np.format_float_positional(value, unique=True, trim="-")
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e7 else f"{value:.10g}"


def signed(value: Any) -> str:
    """Return a number as text to stand after an operator: in parentheses if negative."""
    return f"({number(value)})" if value < 0 else number(value)


def place(blob: str, index: Sequence[int]) -> str:
    """Return an element's name: `conv1[0, 2, 3, 4]`; for a scalar only the blob's."""
    return f"{blob}[{', '.join(map(str, index))}]" if len(index) else blob


def table(rows: Sequence[Sequence[str]], *, left: int = 1, indent: str = "  ") -> list[str]:
    """Return rows of cells as aligned lines: the first `left` columns to the left, the others to the right."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        indent
        + "   ".join(cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    ]


def same(a: float, b: float, tolerance: float = 0.0) -> bool:
    """Return True if two numbers are equal (NaN equals NaN) or at most `tolerance` apart."""
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance


Index = tuple[int, ...]


class Term(NamedTuple):
    """One line of a sum: the element it comes from, its columns by name, and the number that it adds."""

    blob: str
    at: Index
    columns: dict[str, float]
    product: float


def flat_index(at: Sequence[Any], shape: Index) -> int:
    """Return the flat index of the element `at` in an array of this shape; 0 for a scalar."""
    return int(np.ravel_multi_index(at, shape)) if len(at) else 0


def indices(flat: Array, shape: Index) -> Array:
    """Return the indices (T, axes) of flat indices (T,) into an array of this shape."""
    return np.stack(np.unravel_index(flat, shape), axis=1) if shape else np.zeros((len(flat), 0), int)


@dataclass(frozen=True, eq=False)
class Terms(Sequence[Term]):
    """The terms of a sum as arrays: which (T,) of `blobs`, places (T, axes), columns by name (T,), product (T,).

    padding (T,): whether a place lies on padding around the map, where every number is 0; None: none does.
    """

    blobs: tuple[str, ...]
    which: Array
    places: Array
    columns: Mapping[str, Array]
    product: Array
    title: str = "product"
    padding: Array | None = None

    @classmethod
    def of(cls, blob: str, index: Array, columns: Mapping[str, Array], product: Array, title: str = "product") -> Terms:
        """Make terms of one blob; columns and product become float64."""
        wide = {name: np.asarray(column, np.float64).reshape(-1) for name, column in columns.items()}
        flat = np.asarray(product, np.float64).reshape(-1)
        return cls((blob,), np.zeros(len(flat), int), np.asarray(index, int), wide, flat, title)

    @classmethod
    def joined(cls, parts: Sequence[Terms]) -> Terms:
        """Return the terms of one sum over several blobs. parts: at least one, all with the same columns."""
        which = np.concatenate([np.full(len(part), i) for i, part in enumerate(parts)])
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        blobs = tuple(part.blobs[0] for part in parts)
        places, product = (np.concatenate([getattr(part, name) for part in parts]) for name in ("places", "product"))
        padded = [np.zeros(len(part), bool) if part.padding is None else part.padding for part in parts]
        return cls(blobs, which, places, columns, product, parts[0].title, np.concatenate(padded))

    def only(self, kept: Array) -> Terms:
        """Return the terms that the mask kept (T,) selects."""
        columns = {name: column[kept] for name, column in self.columns.items()}
        padding = None if self.padding is None else self.padding[kept]
        return Terms(self.blobs, self.which[kept], self.places[kept], columns, self.product[kept], self.title, padding)

    def __len__(self) -> int:
        return len(self.product)

    @overload
    def __getitem__(self, i: int) -> Term: ...
    @overload
    def __getitem__(self, i: slice) -> list[Term]: ...
    def __getitem__(self, i: int | slice) -> Term | list[Term]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        index = tuple(int(v) for v in self.places[i])
        columns = {name: float(column[i]) for name, column in self.columns.items()}
        return Term(self.blobs[self.which[i]], index, columns, float(self.product[i]))

    def __iter__(self) -> Iterator[Term]:
        return (self[i] for i in range(len(self)))

    def total(self) -> float:
        """Return the correctly rounded sum, or the IEEE sum if values are not finite."""
        finite = np.isfinite(self.product).all()
        return math.fsum(self.product.tolist()) if finite else float(np.add.reduce(self.product))  # fsum raises for inf - inf

    def size(self) -> float:
        """Return the sum of the terms' absolute values."""
        return float(np.abs(self.product).sum())

    def _where(self, i: int) -> str:
        """Return the place of term i as text."""
        term = self[i]
        return place(term.blob, term.at) + " (padding)" * (self.padding is not None and bool(self.padding[i]))

    def lines(self, rows: int) -> list[str]:
        """Return a table of the terms. Of more than `rows`, it has the largest, in order, and the sum of the others."""
        shown = np.arange(len(self))
        if len(self) > rows:
            shown = np.sort(np.argsort(-np.abs(self.product), kind="stable")[:rows])  # the largest, back in their order
        head = ["", *self.columns, self.title]
        columns = [*self.columns.values(), self.product]
        body = [[self._where(i), *(number(column[i]) for column in columns)] for i in shown.tolist()]
        if len(self) > rows:
            rest = np.delete(self.product, shown)
            body.append([f"{len(rest)} smaller terms not shown, together", *[""] * len(self.columns), number(rest.sum())])
        return table([head, *body])
