"""The means and the factor of images that a folder tells for a net."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from minicaffe.detection.family import numbers_text
from minicaffe.errors import pasted

from .scan import MEAN, NET, Item


@dataclass(frozen=True)
class Preparation:
    """means: one or three, blue first; () if none are told. factor: applied after that; 1 by default. place: of the first."""

    means: tuple[float, ...]
    factor: float
    place: str

    @property
    def options(self) -> str:
        """The options of a command."""
        means = self.means * 3 if len(self.means) == 1 else self.means
        text = f" --mean {pasted(numbers_text(means))}" if len(means) == 3 else ""
        return text + f" --scale-factor {self.factor:g}" * (self.factor != 1)

    @property
    def says(self) -> str:
        means = [f"mean {numbers_text(self.means * 3 if len(self.means) == 1 else self.means)}"] if self.means else []
        return f"{self.place} has {', '.join([*means, *[f'factor {self.factor:g}'] * (self.factor != 1)])}"


def preparations(items: Sequence[Item], net: Item) -> list[Preparation]:
    """Return the different preparations that are told for a net; one of them if the folder is clear about it.

    The data layers of prototxts in the net's own folder count, else those in the folder around it, and so on. Where no layer
    tells, mean files do. Other folders count only if all nets lie in one.
    """
    of_one = len({PurePath(item.path).parent for item in items if item.kind == NET}) == 1
    for folder in PurePath(net.path).parents:
        if found := _different(_in([item for item in items if PurePath(item.path).parent == folder], items)):
            return found
    return _different(_in(items, items)) if of_one else []


def _different(found: Iterator[Preparation]) -> list[Preparation]:
    """Return the first preparation of each kind."""
    kinds: dict[tuple[tuple[float, ...], float], Preparation] = {}
    for one in found:
        kinds.setdefault((one.means, one.factor), one)
    return list(kinds.values())


def _in(some: Sequence[Item], items: Sequence[Item]) -> Iterator[Preparation]:
    """Yield what these files tell: layers, or mean files if no layer does. items: all files, among them layers' mean files."""
    files = {Path(item.path).name: tuple(item.content) for item in items if item.kind == MEAN and not item.problem}
    told = False
    for item in some:
        for layer in item.content.param.layer if item.kind == NET and item.content else ():
            param = layer.transform_param
            means = tuple(param.mean_value) or files.get(Path(param.mean_file).name, ())
            if means or param.HasField("scale"):
                told = True
                yield Preparation(means, round(param.scale, 9), item.path)
    if not told:
        yield from (Preparation(tuple(item.content), 1.0, item.path) for item in some if item.kind == MEAN and not item.problem)
