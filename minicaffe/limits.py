"""Limits on what a file may declare: a few bytes of a prototxt, a header or an image can declare any size.

    minicaffe.limits.pixels = 10**9        from Python
    minicaffe run NET --limit pixels=1e9   on the command line; also pixels=1G, of 2**30

An unknown name, or a value that is not a whole number of at least 1, raises Error. No published model or photograph comes
near the defaults, which do not depend on the machine's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from numbers import Real
from types import ModuleType
from typing import Any

from .errors import Error, LimitError, nearest

blob_elements: int = 2**31 - 1
"""Most elements of one blob; Caffe's INT_MAX, which cannot be raised."""
layers: int = 10_000
"""Most layers of a net, without inserted Split layers, and most steps of a DenseBlock. A weights file may have
4 blobs for each; a prototxt 200 words and signs, 200 backslashes, 10 bottoms and tops, and 10 unknown fields."""
bytes: int = 2**38
"""Most bytes of all blobs of a net (without diffs), and of all arrays unpacked from a file."""
pixels: int = 2**28
"""Most pixels of an image that is read."""
text: int = 2**24
"""Most bytes of a prototxt or another text that is parsed: settings, an annotation's XML, a label map, names of classes."""
lists: int = 2**30
"""Most bytes of a file with up to millions of entries: images, windows, annotations (JSON), a log. COCO's training annotations
have 0.45e9. A file of very short lines takes 50 times its size in memory."""

NAMES = ("blob_elements", "layers", "bytes", "pixels", "text", "lists")


def raising(name: str) -> str:
    """Return advice on how to raise a limit, for error messages."""
    return f"minicaffe.limits.{name} = N, or --limit {name}=N, allows more"


def refusing(name: str) -> str:
    """Return advice on how to lower a limit, for a file that takes more memory than there is."""
    return f"minicaffe.limits.{name} = N, or --limit {name}=N, refuses larger ones at once"


def check(what: str, amount: int, name: str) -> None:
    """Raise LimitError if amount is above the limit: `what has 12 layers, and the limit is 10: ...`."""
    most = globals()[name]
    if amount > most:
        unit = {"blob_elements": "elements", "text": "bytes", "lists": "bytes"}.get(name, name)
        raise LimitError(f"{what} has {amount:,} {unit}, and the limit is {most:,}: {raising(name)}")


@contextmanager
def raised(given: Mapping[str, float]) -> Iterator[None]:
    """Set other limits in the block. Raises Error for an unknown name, and for a value that is not a whole number >= 1."""
    before = {name: globals()[name] for name in NAMES}
    checked = {name: _whole(name, most) for name, most in given.items()}
    globals().update(checked)
    try:
        yield
    finally:
        globals().update(before)


def _whole(name: str, most: Any) -> int:
    """Return the value of a limit as an int. Raises Error."""
    if name not in NAMES:
        near = nearest(name.lower(), NAMES)
        meant = f'; did you mean "{near[0]}"?' if near else ""
        raise Error(f'unknown limit "{name}"; the limits are {", ".join(NAMES)}{meant}')
    is_number = isinstance(most, Real) and not isinstance(most, bool)
    if not (is_number and 1 <= most < inf and most % 1 == 0):
        raise Error(f"the limit {name} must be a whole number, at least 1, got {most!r}")
    return int(most)


class _Limits(ModuleType):
    """The type of this module, which checks assignments to it."""

    def __setattr__(self, name: str, value: object) -> None:
        inner = name.startswith("__")  # Python sets dunder names when it reloads the module
        super().__setattr__(name, value if inner else _whole(name, value))


sys.modules[__name__].__class__ = _Limits  # a module cannot have a __setattr__ hook, but its class can
