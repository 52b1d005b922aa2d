"""SSD's functions in minicaffe.ops.

Boxes are xmin, ymin, xmax, ymax as parts of the image's width and height. P is the number of prior boxes, C of classes.

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
"""The divisors of the codes of SSD's nets."""


def ssd_decode(codes: Array, priors: Array, variances: ArrayLike = VARIANCES, code: int | str = "CENTER_SIZE") -> Array:
    """Return the boxes that codes describe relative to prior boxes.

    Parameters
    ----------
    codes : (P, 4) ndarray
        The codes.
    priors : (P, 4) ndarray
        The prior boxes.
    variances : (4,) or (P, 4) array_like
        The divisors of the codes, as PriorBox gives them. Default: 0.1, 0.1, 0.2, 0.2.
    code : {"CENTER_SIZE", "CORNER", "CORNER_SIZE"} or int
        The kind of code, by its name or number in caffe.proto.

    Returns
    -------
    (P, 4) ndarray
        The boxes.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    return box_codes.decode(codes, _priors(priors, variances), code_number(code))


def ssd_encode(boxes: Array, priors: Array, variances: ArrayLike = VARIANCES, code: int | str = "CENTER_SIZE") -> Array:
    """Return the codes of boxes relative to prior boxes, the inverse of ssd_decode.

    Parameters
    ----------
    boxes : (P, 4) ndarray
        The boxes.
    priors : (P, 4) ndarray
        The prior boxes.
    variances : (4,) or (P, 4) array_like
        The divisors of the codes, as PriorBox gives them. Default: 0.1, 0.1, 0.2, 0.2.
    code : {"CENTER_SIZE", "CORNER", "CORNER_SIZE"} or int
        The kind of code, by its name or number in caffe.proto.

    Returns
    -------
    (P, 4) ndarray
        The codes.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    return box_codes.encode(boxes, _priors(priors, variances), code_number(code))


def ssd_match(overlaps: Array, threshold: float | None = 0.5) -> tuple[NDArray[np.intp], Array]:
    """Match prior boxes with true boxes.

    First each true box takes the free prior that overlaps it most.
    Then each remaining prior takes the box that it overlaps most, if by `threshold` or more.

    Parameters
    ----------
    overlaps : (P, G) ndarray
        The overlap of each prior with each true box.
    threshold : float or None, default 0.5
        The least overlap of the remaining priors. None: they take no box.

    Returns
    -------
    indices : (P,) ndarray of int
        The true box of each prior, or -1.
    overlap : (P,) ndarray
        The overlap of each prior with it; for -1 the prior's largest.

    Raises
    ------
    Error
        An argument has a wrong type or shape.
    """
    return multi_box.match(overlaps, threshold, np.zeros(len(overlaps), bool))


def ssd_nms(
    boxes: Array, scores: Array, threshold: float, *, least: float = -np.inf, top_k: int | None = None, eta: float = 1.0
) -> NDArray[np.intp]:
    """Return the indices of the boxes that NMS keeps, best score first.

    A candidate is kept unless it overlaps a kept one by more than `threshold`.

    Parameters
    ----------
    boxes : (N, 4) ndarray
        The boxes.
    scores : (N,) ndarray
        Their scores.
    threshold : float
        The largest overlap of two kept boxes.
    least : float, optional
        Candidates have a score > least. Default: -infinity.
    top_k : int or None, optional
        The number of best candidates. None: no limit.
    eta : float, default 1
        If < 1, each kept box multiplies the threshold by eta, down to 0.5.

    Returns
    -------
    ndarray of int
        Indices of the kept boxes.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
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
    """Return one image's detections, ordered by class, then score.

    Parameters
    ----------
    boxes : (P, 4) or (C, P, 4) ndarray
        The boxes of all classes, or of each class.
    scores : (C, P) ndarray
        The scores.
    background : int, default 0
        The class without detections.
    least : float, default 0.01
        Candidates have a score > least.
    nms_threshold : float, default 0.45
        The largest overlap of two kept boxes of a class.
    top_k : int or None, default 400
        The number of best candidates of each class. None: no limit.
    keep_top_k : int, default 200
        The number of detections of all classes. -1: no limit.
    eta : float, default 1
        If < 1, each kept box multiplies the threshold by eta, down to 0.5.

    Returns
    -------
    (n, 6) ndarray
        Class, score, xmin, ymin, xmax and ymax of each detection.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.

    Notes
    -----
    Source: Liu et al., SSD (arXiv:1512.02325); the SSD fork's detection_output_layer.cpp.
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
    """Return a code's number in caffe.proto.

    Parameters
    ----------
    code : str or int
        CENTER_SIZE, CORNER or CORNER_SIZE, or its number.

    Returns
    -------
    int
        The number.

    Raises
    ------
    Error
        The name or number is unknown.
    """
    known = caffe_pb2.PriorBoxParameter.CodeType
    if code not in (known.keys() if isinstance(code, str) else known.values()):
        raise Error(f"code is one of {', '.join(known.keys())}, got {code!r}")
    return int(known.Value(code)) if isinstance(code, str) else code


def _priors(priors: Array, variances: ArrayLike) -> box_codes.Priors:
    """Return priors (P, 4) with the variances of each."""
    return box_codes.Priors(priors, np.broadcast_to(np.asarray(variances, priors.dtype), priors.shape))
