"""The checks of minicaffe.ops: each argument against its specification, then all of them together.

They run before the function; layers call it unchecked.

    "N 5"     an array of two axes, 5 the last; a letter is one length in all of the call's arguments
    "N 4K"    the last a multiple of 4          "4+"  at least 4          "int R"  whole numbers
    COUNT, LENGTH, INTEGER, NUMBER: a whole number > 0, >= 0, any, a finite number
    SHAPE: four lengths (N, C, H, W)            ARRAY: numbers of any shape
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np

from minicaffe.blob import Array, numbers
from minicaffe.errors import Error
from minicaffe.layers.roi import roi_geometry
from minicaffe.layers.ssd import box_codes

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
    return _flat_box(given, ["boxes", "targets"], 1)  # as in Faster R-CNN, both corners are inside the box


def _flat_box(given: Arguments, names: list[str], inclusive: int) -> str:
    """Return a message on the first box without a width or height, which has no logarithm; "" without one."""
    for name in names:
        flat = ~(given[name][:, 2:] - given[name][:, :2] + inclusive > 0).all(axis=1)
        if flat.any():
            row = int(flat.argmax())
            return f"{name} {row} has no width or height: {given[name][row].tolist()}"
    return ""


def not_positive(name: str) -> Problem:
    """Return a check that all numbers of an argument are > 0."""

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
    """Return a message on faulty arguments of a code: a prior without a size cannot be a unit."""
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


COUNT, LENGTH, INTEGER, NUMBER, SHAPE, ARRAY = "count", "length", "integer", "number", "shape", "array"
LEAST = {COUNT: 1, LENGTH: 0, INTEGER: None}
"""The least value of each kind of whole number."""

P = ParamSpec("P")
Y = TypeVar("Y")
Arguments = Mapping[str, Any]
Problem = Callable[[Arguments], str]
"""A check of a call's arguments together. It returns the problem, or ""."""


def checked(function: Callable[P, Y], problem: Problem | None = None, /, **specs: str) -> Callable[P, Y]:
    """Return the function with its arguments checked and lists converted to arrays.

    Raises Error, which names the function and the argument.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Y:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        lengths: dict[str, int] = {}
        try:
            for name, spec in specs.items():
                bound.arguments[name] = _argument(name, spec, bound.arguments[name], lengths)
            if problem and (text := problem(bound.arguments)):
                raise Error(text)
        except Error as error:
            raise Error(f"{function.__name__}: {error}") from error
        return function(*bound.args, **bound.kwargs)

    return call


def _argument(name: str, spec: str, value: Any, lengths: dict[str, int]) -> Any:
    if spec in LEAST:
        return _whole(name, value, LEAST[spec])
    if spec == NUMBER:
        return _number(name, value)
    if spec == SHAPE:
        return _shape(name, value, lengths)
    return _array(name, spec, value, lengths)


def _whole(name: str, value: Any, least: int | None) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        raise Error(f"{name} must be a whole number, got {value!r}") from None
    if least is not None and whole < least:
        raise Error(f"{name} must be >= {least}, got {whole}")
    return whole


def _number(name: str, value: Any) -> float:
    if isinstance(value, str | bytes) or np.ndim(value) or not np.isrealobj(value):
        raise Error(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise Error(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise Error(f"{name} must be finite, got {number}")
    return number


def _shape(name: str, value: Any, lengths: dict[str, int]) -> tuple[int, ...]:
    if np.ndim(value) != 1 or len(value) != 4:
        raise Error(f"{name} must be the four lengths (N, C, H, W), got {value!r}")
    shape = tuple(_whole(name, length, 0) for length in value)
    for letter, length in zip("NCHW", shape):
        if lengths.setdefault(letter, length) != length:
            raise Error(f"{name} must have {letter} = {lengths[letter]}, as the other arguments have; got {shape}")
    return shape


def _array(name: str, spec: str, value: Any, lengths: dict[str, int]) -> Array:
    array = numbers(name, value)
    axes = spec.removeprefix("int ").split()
    if spec.startswith("int "):
        if array.size and array.dtype.kind not in "iu":
            raise Error(f"{name} must hold whole numbers, got an array of {array.dtype}")
    elif array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    if axes[1:] == ["5"] and array.ndim == 4 and array.shape[2:] == (1, 1):  # rois may have the shape of a blob, (R, 5, 1, 1)
        array = array.reshape(array.shape[:2])
    if spec == ARRAY:
        return array
    # [] means no rows, of any width.
    if array.shape == (0,) and len(axes) > 1 and all(axis.rstrip("+").isdigit() for axis in axes[1:]):
        array = array.reshape(0, *(int(axis.rstrip("+")) for axis in axes[1:]))
    known = dict(lengths)  # `lengths` must not change until all axes fit, because the message shows it
    if array.ndim != len(axes) or not all(_fits(axis, length, known) for axis, length in zip(axes, array.shape)):
        given = ", ".join(f"{letter} = {lengths[letter]}" for letter in dict.fromkeys(axes) if letter in lengths)
        wanted = "(" + ", ".join(axes) + "," * (len(axes) == 1) + ")" + (f" with {given}" if given else "")
        raise Error(f"{name} must have shape {wanted}, got {array.shape}")
    lengths.update(known)
    return array


def _fits(axis: str, length: int, lengths: dict[str, int]) -> bool:
    number, letter, more = re.fullmatch(r"(\d*)([A-Z]*)(\+?)", axis).groups()  # type: ignore[union-attr]
    if letter:
        times = int(number or 1)
        return length % times == 0 and lengths.setdefault(letter, length // times) == length // times
    return length >= int(number) if more else length == int(number)
