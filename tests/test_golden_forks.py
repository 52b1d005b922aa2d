"""What the forks' own code computed, case by case (../shared/golden_forks beside the repository)."""

from __future__ import annotations

from typing import Any

import pytest
from golden import FORKS, run_case

from minicaffe.layers import CATALOGUE

NOT_YET = {
    "Yolov3DetectionOutput/gaussian",  # gaussian_box is refused: its score is not known, and the case detects nothing
}
"""Folders, or cases, of types that are built, of a fork whose kind is not."""

NO_GRADIENT = {
    "CtcLoss/loss_weight",  # 0: the fork's forward writes the diff, and it was cleared before backward
    "HardSigmoid/edges",  # 0.2 dy at -3 and 3, where y is flat
}
"""Cases whose recorded bottom_diff is the fork's, and not the gradient."""


def cases() -> list[Any]:
    if not FORKS.is_dir():
        return [pytest.param(None, marks=pytest.mark.skip(reason="../shared/golden_forks is absent"))]
    folders = [path for path in sorted(FORKS.iterdir()) if path.is_dir() and path.name.split("@")[0] in CATALOGUE]
    names = [f"{folder.name}/{path.stem}" for folder in folders for path in sorted(folder.glob("*.npz"))]
    return [name for name in names if not {name, name.split("/")[0]} & NOT_YET]


@pytest.mark.filterwarnings("ignore::minicaffe.errors.PrototxtWarning")
@pytest.mark.parametrize("case", cases())
def test_the_layer_is_the_forks(case: str) -> None:
    assert run_case(case, root=FORKS, backward=case not in NO_GRADIENT)
