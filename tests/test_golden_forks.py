"""What the forks' own code computed, case by case (../shared/golden_forks beside the repository)."""

from __future__ import annotations

from typing import Any

import pytest
from golden import FORKS, run_case
from recordings import absent

from minicaffe.layers import CATALOGUE

OTHERWISE = {
    "Yolov3DetectionOutput/gaussian": "the fork's code for the CPU multiplies the scores by a number that it never wrote: 0",
}
"""Cases that we compute otherwise than recorded, and why."""

NO_GRADIENT = {
    "CtcLoss/loss_weight",  # 0: the fork's forward writes the diff, and it was cleared before backward
    "HardSigmoid/edges",  # 0.2 dy at -3 and 3, where y is flat
}
"""Cases whose recorded bottom_diff is the fork's, and not the gradient."""


def cases() -> list[Any]:
    if not FORKS.is_dir():
        return [pytest.param(None, marks=absent)]
    folders = [path for path in sorted(FORKS.iterdir()) if path.is_dir() and path.name.split("@")[0] in CATALOGUE]
    found = [f"{folder.name}/{path.stem}" for folder in folders for path in sorted(folder.glob("*.npz"))]
    marks = {case: pytest.mark.xfail(reason=reason, raises=AssertionError) for case, reason in OTHERWISE.items()}
    return [pytest.param(case, id=case, marks=marks.get(case, ())) for case in found]


@pytest.mark.filterwarnings("ignore::minicaffe.errors.PrototxtWarning")
@pytest.mark.parametrize("case", cases())
def test_the_layer_is_the_forks(case: str) -> None:
    assert run_case(case, root=FORKS, backward=case not in NO_GRADIENT)
