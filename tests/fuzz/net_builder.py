"""A random net in the making: prototxt text that grows layer by layer, each connected at once, so that shapes are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from minicaffe import TRAIN, Blob
from minicaffe.formats.prototxt import parse_message
from minicaffe.layers import create
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]
T = TypeVar("T")

MOST = 5000
"""Numbers of a blob that a layer is put on."""
LARGE = 60000
"""The same in a large net, whose blobs the threads share out."""


class NoPlaceError(Exception):
    """No blob so far suits the layer."""


@dataclass
class RandomNet:
    """A net's prototxt, its phase, and what its inputs hold.

    seen: the inputs that a gradient is checked in. ends: the outputs that count in what is differentiated where backward is
    forced, beside the losses. stopped: names of blobs of which a layer's propagate_down says false. large: enough for
    several threads. body: how many layers stand before the losses.
    """

    head: str
    layers: list[str]
    phase: int
    inputs: dict[str, Array]
    kinds: list[str]
    seen: list[str]
    ends: list[str]
    stopped: list[str]
    large: bool
    body: int

    @property
    def text(self) -> str:
        return "\n".join([self.head, *self.layers, ""])

    @property
    def forced(self) -> bool:
        return "force_backward" in self.head

    def first(self, count: int) -> RandomNet:
        """The same net up to its layer `count`."""
        return replace(self, layers=self.layers[:count], kinds=self.kinds[:count], body=min(self.body, count))


class Builder:
    """blobs: all so far. free: those that a layer may read and pass a gradient to; unread: those that none reads yet."""

    def __init__(self, seed: Sequence[int], phase: int) -> None:
        self.random = np.random.default_rng(seed)
        self.phase = phase
        self.large = self.chance(0.03)
        self.texts: list[str] = []
        self.kinds: list[str] = []
        self.blobs: dict[str, Blob] = {}
        self.free: list[str] = []
        self.unread: dict[str, None] = {}
        self.inputs: dict[str, Array] = {}
        self.stopped: list[str] = []
        self.seen: list[str] = []
        self.open: set[str] = set()
        self.losses = self.body = 0
        self.shared: list[tuple[str, str, str, tuple[int, ...], int]] = []

    # Chance.

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.random.integers(low, high + 1))

    def one(self, choices: Sequence[T]) -> T:
        return choices[int(self.random.integers(len(choices)))]

    def number(self, low: float, high: float) -> str:
        """A number between the two, as prototxt."""
        return f"{self.random.uniform(low, high):.3f}"

    def distinct(self, *ranges: tuple[int, int]) -> list[int]:
        """A length from each range, no two the same."""
        lengths: list[int] = []
        for low, high in ranges:
            lengths.append(self.one([n for n in range(low, high + 1) if n not in lengths]))
        return lengths

    # Blobs.

    def shape(self, name: str) -> tuple[int, ...]:
        return self.blobs[name].shape

    def pick(self, *axes: int, where: Callable[[tuple[int, ...]], bool] | None = None) -> str:
        """A blob of so many axes (default: any, but 0) of which where is true. Raises NoPlaceError."""
        most = LARGE if self.large else MOST
        found = []
        for name in self.free:
            shape = self.shape(name)
            if 0 < self.blobs[name].count <= most and (len(shape) in axes if axes else shape) and (not where or where(shape)):
                found += [name] * (3 if name in self.unread else 1)
        if not found:
            raise NoPlaceError
        return self.one(found)

    def input(self, values: Array, stem: str = "x", *, free: bool = False) -> str:
        """An Input that holds values."""
        name = f"{stem}{len(self.texts)}"
        dims = " ".join(f"dim: {n}" for n in values.shape)
        self._append(f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}', "Input")
        self.blobs[name] = Blob(values.shape)
        self.blobs[name].data[...] = values
        self.inputs[name] = values.astype(np.float32)
        if free:
            self.free.append(name)
            self.seen.append(name)
            self.unread[name] = None
        return name

    def normal(self, *shape: int) -> Array:
        return self.random.standard_normal(shape)

    # Layers.

    def add(
        self,
        kind: str,
        bottoms: Sequence[str],
        body: str = "",
        *,
        tops: int = 1,
        dead: Sequence[int] = (),
        in_place: bool = False,
    ) -> list[str]:
        """Put a layer on bottoms; its tops. dead: tops whose diffs are not read: no layer is put on them."""
        name = f"{kind.lower()}{len(self.texts)}"
        names = [bottoms[0]] if in_place else [f"{name}_{i}" if i else name for i in range(tops)]
        words = "".join(f' bottom: "{b}"' for b in bottoms) + "".join(f' top: "{t}"' for t in names)
        if not in_place and self.chance(0.03):
            body += self._propagate_down(bottoms)
        text = f'layer {{ name: "{name}" type: "{kind}"{words} {body} }}'
        self._connect(text, bottoms, names)
        self._append(text, kind)
        for bottom in bottoms:
            self.unread.pop(bottom, None)
            self.open.discard(bottom)
        for i, top in enumerate(names):
            if i not in dead:
                self.unread[top] = None
                if not in_place:
                    self.free.append(top)
        return names

    def share(self, kind: str, bottom: str, body: str, blobs: int) -> list[str]:
        """Add a layer whose weights have names, for others to share."""
        names = [f"w{len(self.texts)}_{i}" for i in range(blobs)]
        body += "".join(f' param {{ name: "{n}" }}' for n in names)
        self.shared.append((kind, bottom, body, self.shape(bottom), blobs))
        return self.add(kind, [bottom], body)

    def _propagate_down(self, bottoms: Sequence[str]) -> str:
        goes = [name in self.free and self.chance(0.5) for name in bottoms]
        self.stopped += [name for name, yes in zip(bottoms, goes, strict=True) if not yes]
        return "".join(f" propagate_down: {str(yes).lower()}" for yes in goes)

    def _connect(self, text: str, bottoms: Sequence[str], tops: Sequence[str]) -> None:
        param = caffe_pb2.LayerParameter()
        parse_message(text[text.index("{") + 1 : text.rindex("}")], param, "<random>")
        made = [self.blobs[t] if t in bottoms else Blob(()) for t in tops]
        create(param, phase=self.phase).connect([self.blobs[b] for b in bottoms], made)  # type: ignore[arg-type]
        self.blobs.update(zip(tops, made, strict=True))

    def _append(self, text: str, kind: str) -> None:
        self.texts.append(text)
        self.kinds.append(kind)

    def net(self) -> RandomNet:
        """What was made."""
        head = f'name: "random_{"train" if self.phase == TRAIN else "test"}"' + " force_backward: true" * self.chance(0.5)
        ends = [name for name in self.unread if name in self.free]
        stopped, large, body = self.stopped, self.large, self.body
        return RandomNet(head, self.texts, self.phase, self.inputs, self.kinds, self.seen, ends, stopped, large, body)
