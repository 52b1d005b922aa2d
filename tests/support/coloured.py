"""A picture of one colour, and what a net's input holds of it: subtraction and the channels' order, worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe import Net

COLOURED = np.full((40, 60, 3), (110, 130, 90), np.uint8)
"""Blue, green, red."""
MEANS = (100.0, 125.0, 70.0)
CENTRED = (10, 5, 20)
"""The colour without the means."""


def check_planes(net: Net, name: str, wanted: Sequence[float]) -> None:
    """Check that each channel of the input holds only one number."""
    data = net.blobs[name].data
    assert data.shape[:2] == (1, len(wanted))
    for plane, number in zip(data[0], wanted, strict=True):
        np.testing.assert_allclose(plane, number, rtol=1e-5)
