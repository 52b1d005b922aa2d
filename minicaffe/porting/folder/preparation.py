"""The files of a folder that belong to a net, and the means and the factor that they have for its images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from minicaffe.detection.family import numbers_text
from minicaffe.errors import pasted

from .scan import MEAN, NET, Item


def levels(items: Sequence[Item], net: Item) -> Iterator[list[Item]]:
    """Yield the files in the net's folder, then those in the folder around it, and so on."""
    for folder in PurePath(net.path).parents:
        yield [item for item in items if PurePath(item.path).parent == folder]


def nearest(items: Sequence[Item], net: Item) -> list[Item]:
    """Return the files of the nearest folder that has some of them, else all."""
    return next(filter(None, levels(items, net)), list(items))


@dataclass(frozen=True)
class Preparation:
    """means: of blue, green, red; () if none are told. factor: applied after that; 1 by default. place: the first file."""

    means: tuple[float, ...]
    factor: float
    place: str

    @property
    def options(self) -> str:
        """The options of a command."""
        text = f" --mean {pasted(numbers_text(self.means))}" if len(self.means) == 3 else ""
        return text + f" --scale-factor {self.factor:g}" * (self.factor != 1)

    @property
    def says(self) -> str:
        means = [f"mean {numbers_text(self.means)}"] if self.means else []
        return f"{self.place} has {', '.join([*means, *[f'factor {self.factor:g}'] * (self.factor != 1)])}"


def preparations(items: Sequence[Item], net: Item) -> list[Preparation]:
    """Return the different preparations that the folder has for a net; a single one if the folder is clear.

    The data layers of prototxts in the net's own folder count, else those in the folder around it, and so on. Where no layer
    has any, mean files count. Other folders count only if all nets are in one folder.
    """
    for level in levels(items, net):
        if found := _different(_in(level, items)):
            return found
    in_one = len({PurePath(item.path).parent for item in items if item.kind == NET}) == 1
    return _different(_in(items, items)) if in_one else []


def _different(found: Iterator[Preparation]) -> list[Preparation]:
    """Return the first preparation of each kind."""
    kinds: dict[tuple[tuple[float, ...], float], Preparation] = {}
    for one in found:
        kinds.setdefault((one.means, one.factor), one)
    return list(kinds.values())


def _in(some: Sequence[Item], items: Sequence[Item]) -> Iterator[Preparation]:
    """Yield the preparations of these files: of layers, or else of mean files. items: all files of the folder."""
    files = {Path(item.path).name: tuple(item.content) for item in items if item.kind == MEAN and not item.problem}
    found = False
    for item in some:
        for layer in item.content.param.layer if item.kind == NET and item.content else ():
            param = layer.transform_param
            means = tuple(param.mean_value) or files.get(Path(param.mean_file).name, ())
            if means or param.HasField("scale"):
                found = True
                means = means or (0.0,) * (not param.mean_file)  # a layer without a mean subtracts nothing
                yield Preparation(_of_colours(means), param.scale, item.path)
    if not found:
        for item in some:
            if item.kind == MEAN and not item.problem:
                yield Preparation(_of_colours(item.content), 1.0, item.path)


def _of_colours(means: Sequence[float]) -> tuple[float, ...]:
    """Return three means; one mean is that of each colour."""
    return tuple(means) * (3 if len(means) == 1 else 1)
