"""The checks of minicaffe.ops: each argument against what its function takes, before the function; layers call it unchecked.

"N 5"      an array of two axes, 5 the last; a letter is one length in all of the call's arguments
"N 4K"     the last a multiple of 4          "4+"  at least 4          "int R"  whole numbers
COUNT, LENGTH, INTEGER, NUMBER: a whole number > 0, >= 0, any, a finite number          SHAPE: four lengths (N, C, H, W)
ARRAY: numbers of any shape
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

COUNT, LENGTH, INTEGER, NUMBER, SHAPE, ARRAY = "count", "length", "integer", "number", "shape", "array"
LEAST = {COUNT: 1, LENGTH: 0, INTEGER: None}
"""The least of each kind of whole number."""

P = ParamSpec("P")
Y = TypeVar("Y")
Arguments = Mapping[str, Any]
Problem = Callable[[Arguments], str]
"""What is wrong with a call's arguments together, or ""."""


def checked(function: Callable[P, Y], problem: Problem | None = None, /, **specs: str) -> Callable[P, Y]:
    """Return function with its arguments checked and lists made arrays.

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
    if axes[1:] == ["5"] and array.ndim == 4 and array.shape[2:] == (1, 1):  # rois as blobs hold them, (R, 5, 1, 1)
        array = array.reshape(array.shape[:2])
    if spec == ARRAY:
        return array
    # [] is no rows of any width
    if array.shape == (0,) and len(axes) > 1 and all(axis.rstrip("+").isdigit() for axis in axes[1:]):
        array = array.reshape(0, *(int(axis.rstrip("+")) for axis in axes[1:]))
    known = dict(lengths)  # lengths stay as they were until all axes fit: the message shows them
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
