"""The result of a comparison, as data that prints itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.errors import first_of, in_brackets, written_out

MOST_CAUSES = 3


@dataclass(frozen=True)
class Tolerance:
    """a and b agree where |a - b| <= atol + rtol |a|. atol None: rtol / 10 of the largest |a| of the blob."""

    rtol: float = 1e-3
    atol: float | None = None

    def of(self, a: Array) -> float:
        """Return atol for a blob."""
        if self.atol is not None:
            return self.atol
        finite = np.abs(a[np.isfinite(a)])
        return float(finite.max(initial=0.0)) * self.rtol / 10 + 1e-12  # 1e-12 is for a blob of zeros

    def beyond(self, a: Array, b: Array) -> NDArray[np.bool_]:
        """Return where two arrays of one shape differ by more than the tolerance. NaN agrees with NaN, infinity with itself."""
        a, b = a.astype(np.float64), b.astype(np.float64)
        same: NDArray[np.bool_] = np.isclose(b, a, self.rtol, self.of(a), equal_nan=True)
        return ~same

    def agree(self, a: Array, b: Array) -> bool:
        """Return True if the shapes are equal and no element is beyond the tolerance."""
        return a.shape == b.shape and not self.beyond(a, b).any()


@dataclass(frozen=True)
class Difference:
    """A blob that differs.

    layer: its writer or, if a cause is found, the layer with the cause; at: the index of the largest difference, a and b the
    values there; fraction: of the elements, those beyond the tolerance. These numbers are None if the shapes differ. causes:
    changes of the layer that give b when tried. uncompared: layers since the last compared blob.
    """

    layer: str
    type: str
    top: str
    place: str
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    largest: float | None = None
    at: tuple[int, ...] | None = None
    a: float | None = None
    b: float | None = None
    fraction: float | None = None
    causes: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)

    @property
    def cause(self) -> str:
        """The first of causes, or ""."""
        return self.causes[0] if self.causes else ""

    def __str__(self) -> str:
        place = f", {self.place}" if self.place else ""
        lines = [f"{self.layer} ({self.type}{place}), blob {self.top}"]
        if self.shape_a != self.shape_b:
            lines.append(f"  its shape is {self.shape_a} in A, {self.shape_b} in B")
        if self.largest is not None and self.fraction is not None:
            lines.append(f"  largest difference {self.largest:.4g} at {self.at}: {self.a:.6g} in A, {self.b:.6g} in B")
            lines.append(f"  {100 * self.fraction:.3g} % of {int(np.prod(self.shape_a))} values are beyond the tolerance")
        lines += [f"  {'why' if i == 0 else 'or'}: {cause}" for i, cause in enumerate(self.causes[:MOST_CAUSES])]
        if not self.causes:
            lines.append("  why: unknown; none of the known causes gives B's values when tried on the layer")
        if self.uncompared:
            lines.append(f"  not compared before it, because B lacks them: {', '.join(self.uncompared)}")
        return "\n".join(lines)


@dataclass
class Comparison:
    """A whole comparison.

    agreed: (layer, blob, largest difference), in order; unmatched: layers of A without a counterpart in B; missing: outputs of
    A that B lacks; notes: where inputs and weights came from.
    """

    a: str
    b: str
    tolerance: Tolerance
    agreed: list[tuple[str, str, float]] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """True if anything was compared, including every output of A, and nothing differs."""
        return bool(self.agreed) and not self.differences and not self.missing

    @property
    def first(self) -> Difference | None:
        """The first difference."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        lines = [f"A: {self.a}", f"B: {self.b}", *self.notes]
        worst = max((number for _, _, number in self.agreed), default=0.0)
        blobs = f"{len(self.agreed)} blob{'s' * (len(self.agreed) != 1)}"
        if self.first:
            last = f", the last {self.agreed[-1][1]}" if self.agreed else ""
            lines.append(f"{blobs} agree{'s' * (len(self.agreed) == 1)}{last}")
            lines.append("the first that differs: " + str(self.first))
            lines += [f"then: {difference}" for difference in self.differences[1:]]
        elif self.agreed:
            lines.append(f"all {blobs} that both have agree; largest difference {worst:.3g}")
        else:
            way = in_brackets("pair them with --map")
            lines.append(f"nothing was compared: B has none of the names of A's layers and blobs{way}")
        if self.unmatched:
            lines.append(f"in A only: {first_of(self.unmatched)}")
        if self.missing and self.agreed:
            lines.append(f"outputs of A that B lacks, not compared: {', '.join(self.missing)}")
        return written_out("\n".join(lines))
