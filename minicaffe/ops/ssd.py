"""SSD's functions in minicaffe.ops. Boxes are xmin, ymin, xmax, ymax as parts of the image's width and height.

prior_sides -> prior_boxes -> ssd_decode -> ssd_nms of each class: ssd_detections
                           -> jaccard with true boxes -> ssd_match -> ssd_encode
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.layers.ssd import box_codes, multi_box
from minicaffe.layers.ssd.detection_rows import image_detections
from minicaffe.proto import caffe_pb2

VARIANCES = (0.1, 0.1, 0.2, 0.2)
"""The divisors of codes in SSD's nets."""


def ssd_decode(codes: Array, priors: Array, variances: ArrayLike = VARIANCES, code: int | str = "CENTER_SIZE") -> Array:
    """Return the boxes (P, 4) that codes (P, 4) describe relative to priors (P, 4).

    variances: (4,), or (P, 4) as PriorBox gives them. code: CENTER_SIZE, CORNER or CORNER_SIZE.
    """
    return box_codes.decode(codes, _priors(priors, variances), code_number(code))


def ssd_encode(boxes: Array, priors: Array, variances: ArrayLike = VARIANCES, code: int | str = "CENTER_SIZE") -> Array:
    """Return the codes (P, 4) of boxes (P, 4) relative to priors (P, 4), the inverse of ssd_decode."""
    return box_codes.encode(boxes, _priors(priors, variances), code_number(code))


def ssd_match(overlaps: Array, threshold: float | None = 0.5) -> tuple[NDArray[np.intp], Array]:
    """Return for each prior the index of its true box (P,), or -1, and their overlap (P,), from overlaps (P, G).

    First each true box takes the free prior that overlaps it most. Then each prior left takes the box that it overlaps most, by
    threshold or more (None: none).
    """
    return multi_box.match(overlaps, threshold, np.zeros(len(overlaps), bool))


def ssd_nms(
    boxes: Array, scores: Array, threshold: float, *, least: float = -np.inf, top_k: int | None = None, eta: float = 1.0
) -> NDArray[np.intp]:
    """Return indices of the boxes (N, 4) that are kept, best score (N,) first.

    Candidates are the top_k best with scores > least. A candidate is kept unless it overlaps a kept one by more than threshold.
    eta < 1: each kept box multiplies the threshold by eta, down to 0.5.
    """
    return box_codes.nms(boxes, scores, threshold, least=least, top_k=top_k, eta=eta)


def ssd_detections(
    boxes: Array,
    scores: Array,
    *,
    background: int = 0,
    least: float = 0.01,
    nms_threshold: float = 0.45,
    top_k: int | None = 400,
    keep_top_k: int = 200,
    eta: float = 1.0,
) -> Array:
    """Return one image's detections (n, 6): class, score, xmin, ymin, xmax, ymax; ordered by class, then score.

    boxes: (P, 4), which all classes share, or one set for each (C, P, 4). scores: (C, P). keep_top_k: of all classes, -1 for no
    limit.
    """
    rows = image_detections(
        boxes[None] if boxes.ndim == 2 else boxes,
        scores,
        background=background,
        least=least,
        nms_threshold=nms_threshold,
        top_k=top_k,
        keep_top_k=keep_top_k,
        eta=eta,
    )
    return rows[:, 1:]


def code_number(code: int | str) -> int:
    """Return a code's number in caffe.proto. Raises Error for an unknown name or number."""
    known = caffe_pb2.PriorBoxParameter.CodeType
    if code not in (known.keys() if isinstance(code, str) else known.values()):
        raise Error(f"code is one of {', '.join(known.keys())}, got {code!r}")
    return int(known.Value(code)) if isinstance(code, str) else code


def _priors(priors: Array, variances: ArrayLike) -> box_codes.Priors:
    """Return priors (P, 4) with the variances of each."""
    return box_codes.Priors(priors, np.broadcast_to(np.asarray(variances, priors.dtype), priors.shape))
