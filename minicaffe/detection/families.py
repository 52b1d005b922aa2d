"""The families of detectors. A new family is one class in a file of its own, and a line here.

family = family_of(net)
found = family.find(net, image, FindOptions(threshold=0.5))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import Error, listed
from minicaffe.net import Net

from .cascade import Cascade
from .detect import Detections, Rcnn
from .detect_net import DetectNet
from .family import Family, FindOptions
from .mscnn import Mscnn
from .mtcnn import Mtcnn
from .reading import Ctpn
from .rows import RowsEnd
from .squeeze_det import SqueezeDet
from .ssd import Ssd
from .ssh import Ssh
from .ultra_face import UltraFace
from .yolo import Yolo1, Yolo2

FAMILIES: tuple[Family, ...] = (
    Ssd(),
    Yolo1(),
    Mscnn(),
    SqueezeDet(),
    DetectNet(),
    UltraFace(),
    Yolo2(),
    Cascade(),
    Ctpn(),
    Ssh(),
    Mtcnn(),
    Rcnn(),
)
"""The first one that matches a net counts. Rcnn is the last: it says what a net lacks that is no detector."""

FAMILY_NAMES = f"{listed(dict.fromkeys(name for family in FAMILIES if family.has_fixed_size for name in family.names))} nets"
"""The nets that take means and a factor."""


def by_family(default: str, value: Callable[[Family], str]) -> str:
    """Return a default and the values of families that have another one, as "1; UltraFace and MTCNN: 1/128"."""
    names: dict[str, dict[str, None]] = {}
    for family in FAMILIES:
        if family.has_fixed_size and value(family) != default:
            names.setdefault(value(family), {}).update(dict.fromkeys(family.names))
    return "; ".join([default, *(f"{listed(one)}: {text}" for text, one in names.items())])


def family_of(net: Net) -> Family:
    """Return the family of a detector. Raises Error for a net of none."""
    return next(family for family in FAMILIES if family.matches(net))


def rows_end(net: Net) -> RowsEnd | None:
    """Return the end of a net that is read as rows of detections; None for another net."""
    with suppress(Error):
        return family_of(net).end(net)
    return None


def detect_ssd(
    net: Net,
    image: NDArray[np.uint8],
    *,
    means: Sequence[float] | None = None,
    scale_factor: float | None = None,
    threshold: float = 0.05,
    max_detections: int = 100,
) -> Detections:
    """Return the detections in image (H, W, 3), blue, green, red.

    means: subtracted from blue, green, red (default: the family's; 104, 117, 123 of an SSD); scale_factor: multiplies the rest
    (default: the family's; 0.007843 in the MobileNet-SSDs).
    Raises Error unless the net has such an end and one input, an image.
    """
    for family in FAMILIES:
        if family.has_fixed_size and family.matches(net):
            return family.find(net, image, FindOptions(threshold, max_detections, means=means, scale_factor=scale_factor))
    raise Error(f"{net.file}: this net does not end as {FAMILY_NAMES} do")
