"""A net's dicts by name: the error for an unknown name suggests close matches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar, NoReturn, TypeVar

from .blob import Blob, BlobList
from .errors import Error, nearest
from .layer import Layer

Value = TypeVar("Value")
SHOWN = 8
"""Most names that a message lists."""


class UnknownNameError(Error, KeyError):
    """A name that a net lacks; also a KeyError, as for any dict."""

    def __str__(self) -> str:
        return str(self.args[0])


class Named(OrderedDict[str, Value]):
    """Values by name, in order. Raises UnknownNameError."""

    what: ClassVar[str] = "value"

    def __missing__(self, name: object) -> NoReturn:
        raise UnknownNameError(f'the net has no {self.what} "{name}"{names_near(str(name), self)}')


class Layers(Named[Layer]):
    """Layers by name."""

    what = "layer"


class Blobs(Named[Blob]):
    """Blobs by name. Raises TypeError for a value that is not a Blob."""

    what = "blob"

    def __setitem__(self, name: str, blob: Blob) -> None:
        if not isinstance(blob, Blob):
            raise TypeError(f'"{name}" is a blob: write blobs["{name}"].data[...] = values')
        super().__setitem__(name, blob)


class Params(Named[BlobList]):
    """Learnable blobs by the name of their layer. Raises TypeError for a value that is not a BlobList."""

    what = "layer with weights"

    def __setitem__(self, name: str, blobs: BlobList) -> None:
        if not isinstance(blobs, BlobList):
            raise TypeError(f'"{name}" has a list of blobs: write params["{name}"][0].data[...] = values')
        super().__setitem__(name, blobs)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean "conv1"?`, with up to three close matches, or "" without any."""
    near = [f'"{other}"' for other in nearest(name, known, 3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def names_near(name: str, known: Iterable[str]) -> str:
    """did_you_mean, or without a close match the known names: `; there are "data", "conv1" and 7 more`."""
    known = list(known)
    if near := did_you_mean(name, known):
        return near
    shown = ", ".join(f'"{other}"' for other in known[:SHOWN])
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"; there {'is' if len(known) == 1 else 'are'} {shown}{more}" if known else ""


def check_names(given: Iterable[str], wanted: Sequence[str], what: str, whose: str) -> None:
    """Raise Error, with the missing and the unknown names, unless exactly the wanted names are given."""
    have, need = set(given), dict.fromkeys(wanted)  # a dict, to list what is missing in the net's order
    if have == need.keys():
        return
    parts = [f"{what} {sorted(have)} do not match {whose} {list(wanted)}"]
    if missing := [name for name in need if name not in have]:
        parts.append(f"missing: {', '.join(missing)}")
    unknown = sorted(have.difference(need))
    parts += [f'"{name}" is none of them{did_you_mean(name, need).replace(";", ",", 1)}' for name in unknown[:SHOWN]]
    if len(unknown) > SHOWN:
        parts.append(f"{len(unknown) - SHOWN} more are none of them")
    raise Error("; ".join(parts))
