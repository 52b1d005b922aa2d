"""Features of an image's best regions, as bottom-up attention takes them from a detector.

    image -> net -> rois, cls_prob (R, C), attr_prob (R, A), features (R, ...)
          -> NMS of the rois within each class -> the rois that are best in some class

Source: bottom-up-attention's tools/generate_tsv.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.data.boxes import rows
from minicaffe.errors import Error
from minicaffe.layers.proposal.nms import Overlaps
from minicaffe.net import Net
from minicaffe.parameters import names_near

from .detect import Detections, Floats, Ints, check_detector, run_net
from .inputs import check_scores

ATTRIBUTES = "attr_prob"
"""The blob of the attributes' scores, if the net has it."""


@dataclass(frozen=True)
class Choice:
    """The choice of regions.

    It takes all with a score of at least threshold in a class whose NMS keeps them; if these are fewer than `least` or more
    than `most`, the best `least` or `most`. blob: the features, one item for each roi. attributes: the names of the attributes,
    without that of none.
    """

    blob: str = "pool5_flat"
    threshold: float = 0.2
    least: int = 10
    most: int = 100
    attributes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most:
            raise Error(f"the minimum of regions must be from 1 to the maximum, {self.most}; got {self.least}")


@dataclass(frozen=True, kw_only=True)
class Regions(Detections):
    """The regions of an image: boxes (n, 4) are the net's rois in pixels of the image, not moved by bbox_pred.

    classes (n,) and scores (n,): the best class but the background, and its score; sources (n,): the roi. features: (n, D), the
    values of each roi's item. class_scores: (n, C). attributes (n,), attribute_scores (n, A): the same of the net's attributes,
    of which 0 is none, or None if it has none. A net whose attributes are Sigmoids gives no score of none: it is 0.
    attribute_names (n,): of attributes, or None if the choice names none.
    """

    features: Floats
    class_scores: Floats
    attributes: Ints | None
    attribute_scores: Floats | None
    attribute_names: NDArray[np.str_] | None = None


def region_features(
    net: Net, image: NDArray[np.uint8], choice: Choice | None = None, *, proposals: ArrayLike | None = None
) -> Regions:
    """Return the regions of image (H, W, 3), blue, green, red, with the net's settings. proposals: as detect's.

    Raises Error for a net that lacks a detector's inputs or blobs, and for a blob without one item for each roi.
    """
    choice = choice or Choice()
    check_features(net, choice)
    wanted = [choice.blob, ATTRIBUTES] if ATTRIBUTES in net.blobs else [choice.blob]
    scale, again = run_net(net, image, net.settings, proposals, wanted)
    count = len(rows(net.blobs["rois"]))
    found = {name: _items(net, name, count) for name in ("rois", "cls_prob", *wanted)}
    if again is not None:
        found = {name: array[again] for name, array in found.items()}
    boxes = (found["rois"][:, 1:5] / scale).astype(np.float32, copy=False)
    scores = found["cls_prob"]
    check_scores(scores, "cls_prob")
    taken = choose(boxes, scores[:, 1:], net.settings.test.nms, choice)
    classes = _best(scores[taken])
    attributes = of_attributes = None
    if ATTRIBUTES in found:
        of_attributes = found[ATTRIBUTES][taken]
        if _independent(net):  # they lack a score of no attribute, so it is 0
            of_attributes = np.pad(of_attributes, ((0, 0), (1, 0)))
        attributes = _best(of_attributes)
    return Regions(
        boxes=boxes[taken],
        scores=scores[taken, classes],
        classes=classes,
        sources=taken,
        best=float(scores[:, 1:].max(initial=0)),
        features=found[choice.blob][taken],
        class_scores=scores[taken],
        attributes=attributes,
        attribute_scores=of_attributes,
        attribute_names=np.array(("", *choice.attributes))[attributes] if choice.attributes else None,
    )


def check_features(net: Net, choice: Choice) -> None:
    """Raise Error unless net is a detector with rois, the blob of the features, and as many attributes as names."""
    check_detector(net)
    if choice.blob not in net.blobs:
        raise Error(f'{net.file}: the net has no blob "{choice.blob}"{names_near(choice.blob, net.blobs)}')
    if choice.attributes:
        if ATTRIBUTES not in net.blobs:
            raise Error(f'{net.file}: names of attributes are given, but the net has no blob "{ATTRIBUTES}"')
        count = net.blobs[ATTRIBUTES].shape[1] - (not _independent(net))
        if count != len(choice.attributes):
            raise Error(f'{net.file}: {len(choice.attributes)} names of attributes, but "{ATTRIBUTES}" scores {count}')


def choose(boxes: Floats, scores: Floats, nms_threshold: float, choice: Choice) -> Ints:
    """Return the rois taken, of boxes (R, 4) and scores (R, C) of the classes without the background.

    They are in the rois' order if the threshold decides, else the best first.
    """
    best = best_kept(boxes, scores, nms_threshold)
    taken = np.flatnonzero(best >= choice.threshold)
    if choice.least <= len(taken) <= choice.most:
        return taken
    return np.argsort(-best, kind="stable")[: choice.least if len(taken) < choice.least else choice.most]


def best_kept(boxes: Floats, scores: Floats, nms_threshold: float) -> Floats:
    """Return for each box (R,) the highest of its scores (R, C) in the classes whose NMS keeps it; 0 if none does.

    The boxes are the same in every class, so their overlaps are computed once, and all classes go from box to box together.
    """
    clash = Overlaps(boxes, nms_threshold, len(boxes))(boxes)
    np.fill_diagonal(clash, val=False)
    alive, every = np.ones(scores.T.shape, bool), np.arange(scores.shape[1])
    for box in np.argsort(-scores, axis=0, kind="stable"):  # (C,): the next box of each class
        kept = alive[every, box]
        alive[kept] &= ~clash[box[kept]]
    best: Floats = np.where(alive.T, scores, 0).max(axis=1, initial=0)
    return best


def _items(net: Net, name: str, count: int) -> NDArray[Any]:
    """Return the values (R, D) of a blob with one item for each roi. Raises Error."""
    blob = net.blobs[name]
    if blob.shape[:1] != (count,):
        raise Error(f'{net.file}: blob "{name}" has the shape {blob.shape}: not one item for each of the {count} rois')
    items: NDArray[Any] = blob.data.reshape(count, -1).copy()  # the next run overwrites the blob
    return items


def _independent(net: Net) -> bool:
    """Return True if the attributes' scores are independent probabilities, none of which is that of no attribute."""
    return any(layer.type == "Sigmoid" and ATTRIBUTES in layer.param.top for layer in net.layers)


def _best(scores: Floats) -> Ints:
    """Return the best class (n,) of scores (n, C), except the background."""
    best: Ints = scores[:, 1:].argmax(axis=1) + 1
    return best
