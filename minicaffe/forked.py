"""Layers that follow the net's fork or its stored weights: types that forks define differently, and other layouts of blobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from minicaffe.formats.forks import Choice, Kind, candidates

from .errors import LayerError, ways
from .layer import Layer


class LayoutFromWeights(Layer):
    """A layer whose learnable blobs follow the stored ones. List it before other bases."""

    def adopt_layout(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Change the blobs to the layout of stored ones of these shapes; return whether they changed.

        The net calls it before it copies stored blobs. Raises WeightsError for the blobs of another kind.
        """
        return False

    def takes_part_of(self, i: int, shape: Sequence[int]) -> bool:
        """Return whether learnable blob i takes the first values of a stored blob of this shape, as a fork's code reads it."""
        return False


class Forked(LayoutFromWeights):
    """A layer of a type that forks of Caffe define differently. List it before other bases: `class FocalLoss(Forked, Loss)`.

    kinds: the layers of the forks that the class computes; setup, adopt_layout or Layer.resolve_class chooses one. () in a
    subclass that is of one fork. is_ambiguous: whether the choice still waits for the weights, so that forward refuses. choice:
    the kind.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ()
    is_ambiguous: bool = False
    choice: Choice | None = None

    def choose(self, whose: str, why: str, *, by_fork: bool = False) -> str:
        """Select one of the kinds, for this reason; return `whose`."""
        self.choice = Choice(self.type, whose, why, by_fork)
        return whose

    def choose_by_fork(self) -> str:
        """Select the kind of the net's fork; return its `whose`, or "" if none of the kinds is of that fork."""
        whose = next((kind.whose for kind in self.kinds if self.fork.name in kind.forks), "")
        return whose and self.choose(whose, self.fork.why, by_fork=True)

    @classmethod
    def kind_from_blobs(cls, shapes: Sequence[Sequence[int]]) -> str:
        """Return `whose` of the kind that has stored blobs of these shapes; "" if the shapes do not decide."""
        return ""

    def ambiguous_kind_error(self, instead: str = "") -> LayerError:
        """Return the error for a layer whose kind is ambiguous, with the candidates. instead: another way to decide."""
        way = ways("--fork NAME", "Net's fork=")
        text = f"it may be {candidates(self.kinds)}, and the files do not show which: {instead}give {way}"
        return self.error(text, "type")


def choice_of(layer: Layer) -> Choice | None:
    """Return the kind of a layer of a forked type; None for other types, and until the weights decide."""
    return layer.choice if isinstance(layer, Forked) else None
