"""Checks of the arguments of minicaffe.ops together, each alone being right: a sentence, or ""."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.roi import roi_geometry
from minicaffe.layers.ssd import box_codes

from .checks import Arguments, Problem
from .ssd import code_number


def bad_rois(given: Arguments) -> str:
    return roi_geometry.rois_problem(given["rois"], given["x_shape"][0], given.get("spatial_scale", 1.0))


def bad_argmax(given: Arguments, places: int) -> str:
    argmax = given["argmax"]
    if argmax.size and not (argmax.min() >= -1 and argmax.max() < places):
        return f"argmax must hold -1 to {places - 1}, got {argmax.min()} to {argmax.max()}: is it of another map?"
    return bad_rois(given)


def bad_pool_argmax(given: Arguments) -> str:
    return bad_argmax(given, given["x_shape"][2] * given["x_shape"][3])


def bad_align_argmax(given: Arguments) -> str:
    return bad_argmax(given, (given["x_shape"][2] + 1) * (given["x_shape"][3] + 1))


def bad_group(given: Arguments) -> str:
    (_, dim, group, _), channels = given["dy"].shape, given["x_shape"][1]
    if channels != dim * group**2:
        return f"x_shape must have D * G * G = {dim} * {group}^2 = {dim * group**2} channels, got {channels}"
    return bad_rois(given)


def bad_sides(given: Arguments) -> str:
    return _flat_box(given, ["boxes", "targets"], 1)  # Faster R-CNN's boxes have both corners inside


def _flat_box(given: Arguments, names: list[str], inclusive: int) -> str:
    """Return the first box without a width or height: it has no logarithm."""
    for name in names:
        flat = ~(given[name][:, 2:] - given[name][:, :2] + inclusive > 0).all(axis=1)
        if flat.any():
            row = int(flat.argmax())
            return f"{name} {row} has no width or height: {given[name][row].tolist()}"
    return ""


def not_positive(name: str) -> Problem:
    """Numbers that all must be > 0."""

    def problem(given: Arguments) -> str:
        positive = (np.isfinite(given[name]) & (given[name] > 0)).all()
        return "" if positive else f"{name} must hold numbers > 0, got {given[name].tolist()}"

    return problem


def bad_anchors(given: Arguments) -> str:
    return not_positive("ratios")(given) or not_positive("scales")(given)


def bad_prior_sides(given: Arguments) -> str:
    low, high = given["min_sizes"], given["max_sizes"]
    if not (low >= 1).all():
        return f"min_sizes must be >= 1, got {low.tolist()}"
    if len(high) not in (0, len(low)):
        return f"{len(high)} max_sizes for {len(low)} min_sizes: give one for each, or none"
    if len(high) and not (high > low).all():
        return f"each of max_sizes must be greater than its min_sizes, got {high.tolist()} and {low.tolist()}"
    return not_positive("ratios")(given)


def bad_prior_places(given: Arguments) -> str:
    return next(filter(None, (not_positive(name)(given) for name in ("sides", "image", "step"))), "")


def bad_variances(given: Arguments) -> str:
    variances, shape = np.asarray(given["variances"]), given["priors"].shape
    if variances.dtype.kind not in "fiu" or variances.shape not in ((4,), shape) or not (variances > 0).all():
        return f"variances must be 4 numbers > 0, or {shape} of them, got {variances.tolist()}"
    return ""


def bad_codes(given: Arguments) -> str:
    """Return what is wrong with the sides of priors: one without a size is no measure."""
    code = code_number(given["code"])
    names = [] if code == box_codes.CORNER else ["priors"] if code == box_codes.CORNER_SIZE else ["priors", "boxes"]
    return _flat_box(given, [name for name in names if name in given], 0) or bad_variances(given)


def bad_detections(given: Arguments) -> str:
    boxes, scores = given["boxes"], given["scores"]
    wanted = (scores.shape[1], 4)
    if boxes.shape not in (wanted, (len(scores), *wanted)):
        return f"boxes must have shape {wanted} or {(len(scores), *wanted)} for scores of {scores.shape}, got {boxes.shape}"
    return bad_eta(given)


def bad_eta(given: Arguments) -> str:
    return "" if 0 < given["eta"] <= 1 else f"eta must be above 0 and at most 1, got {given['eta']:g}"
