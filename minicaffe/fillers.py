"""Fillers: initial values of learnable blobs, and of DummyData's tops.

Source: Caffe's filler.hpp, and the forks' (file: SpatialTransformerLayer's, diagonal: FlowNet 2's, alpha of msra: happynear's
caffe-windows').

    fan_in = count / shape[0], fan_out = count / shape[1]; n = fan_in, fan_out or their mean, by variance_norm
    xavier: uniform in +-sqrt(3 / n). msra: gaussian of deviation sqrt(2 / (n (1 + alpha^2))).

Random values are drawn from minicaffe.rng.generator(), directly into the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import rng
from .errors import DataError, FillerError, nearest, unread
from .files import granted, read_text
from .proto import caffe_pb2

Array = NDArray[Any]


def fill(array: Array, param: caffe_pb2.FillerParameter) -> None:
    """Fill array (C-contiguous, float32 or float64) in place as param says. Raises FillerError."""
    filler = FILLERS.get(param.type)
    if filler is None:
        near = nearest(param.type, FILLERS)
        hint = f"did you mean {near[0]}? " if near else ""
        raise FillerError(f'unknown filler type "{param.type}"; {hint}the fillers are {", ".join(FILLERS)}')
    if param.sparse != -1 and param.type != "gaussian":
        raise FillerError(f"sparse is for the gaussian filler, not for {param.type} (got sparse {param.sparse})")
    filler(array, param)


def leaves_zeros(param: caffe_pb2.FillerParameter) -> bool:
    """Return whether fill writes only zeros, as the default filler does. A new blob has them already."""
    return param.type == "constant" and not param.value and param.sparse == -1


def _constant(array: Array, param: caffe_pb2.FillerParameter) -> None:
    array[...] = param.value


def _uniform(array: Array, param: caffe_pb2.FillerParameter) -> None:
    if param.min > param.max:
        raise FillerError(f"the uniform filler needs min <= max, got min {param.min:g} and max {param.max:g}")
    _draw_uniform(array, param.min, param.max)


def _gaussian(array: Array, param: caffe_pb2.FillerParameter) -> None:
    """Fill with normal values; with sparse >= 0 each is kept with probability sparse / shape[0], the rest are 0."""
    if param.std < 0:
        raise FillerError(f"the gaussian filler needs std >= 0, got {param.std:g}")
    if param.sparse < -1:
        raise FillerError(f"sparse must be -1 (off) or >= 0, got {param.sparse}")
    _draw_gaussian(array, param.std)
    array += param.mean
    if param.sparse >= 0:
        outputs = array.shape[0] if array.ndim else 1
        if param.sparse > outputs:
            raise FillerError(f"sparse {param.sparse} is more than the {outputs} outputs of shape {array.shape}")
        array *= rng.generator().random(array.shape, np.float32) * outputs < param.sparse


def _positive_unitball(array: Array, param: caffe_pb2.FillerParameter) -> None:
    """Fill with uniform values in [0, 1), then divide each array[i] by its sum."""
    if array.ndim == 0:
        raise FillerError("the positive_unitball filler needs at least one axis, got a scalar")
    _draw_uniform(array, 0.0, 1.0)
    if array.size:
        rows = array.reshape(array.shape[0], -1)  # a view: the array is contiguous
        rows /= rows.sum(axis=1, keepdims=True)


def _gaussian_unitball(array: Array, param: caffe_pb2.FillerParameter) -> None:
    """Fill with normal values (happynear's), then divide each array[i] by its Euclidean length."""
    if array.ndim == 0:
        raise FillerError("the gaussian_unitball filler needs at least one axis, got a scalar")
    _gaussian(array, param)
    if array.size:
        rows = array.reshape(array.shape[0], -1)  # a view: the array is contiguous
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)


def _xavier(array: Array, param: caffe_pb2.FillerParameter) -> None:
    if array.size:
        bound = math.sqrt(3 / fan(array.shape, param.variance_norm))
        _draw_uniform(array, -bound, bound)


def _msra(array: Array, param: caffe_pb2.FillerParameter) -> None:
    if array.size:
        _draw_gaussian(array, math.sqrt(2 / fan(array.shape, param.variance_norm) / (1 + param.alpha**2)))


def _bilinear(array: Array, param: caffe_pb2.FillerParameter) -> None:
    """Fill with the kernel of bilinear upsampling by ceil(k / 2), in every (output, input) pair."""
    if array.ndim != 4 or array.shape[2] != array.shape[3]:
        raise FillerError(f"the bilinear filler needs 4 axes with a square kernel, got shape {array.shape}")
    array[...] = bilinear_kernel(array.shape[2])


def _diagonal(array: Array, param: caffe_pb2.FillerParameter) -> None:
    """Fill with zeros, except output n's kernel on input n: diag_val[n] (default 1) divided by the kernel's size."""
    if array.ndim == 0:
        raise FillerError("the diagonal filler needs at least one axis, got a scalar")
    outputs, inputs, size = array.shape[0], math.prod(array.shape[1:2]), math.prod(array.shape[2:])
    kernels = array.reshape(outputs, inputs, size)
    kernels[...] = 0
    for n in range(min(outputs, inputs) if size else 0):
        kernels[n, n] = (param.diag_val[n] if n < len(param.diag_val) else 1) / size


def _file(array: Array, param: caffe_pb2.FillerParameter) -> None:
    """Fill with the numbers in a text file, separated by white space, in the array's order."""
    if not param.file:
        raise FillerError("the file filler needs file, the name of a text file with the numbers")
    try:
        words = read_text(granted(param.file)).split()
        if len(words) != array.size:
            raise FillerError(f"{param.file} holds {len(words)} numbers, the shape {array.shape} takes {array.size}")
        array[...] = np.array([_number(word, param.file) for word in words], np.float64).reshape(array.shape)
    except DataError as error:
        raise FillerError(str(error)) from error
    except OSError as error:
        raise FillerError(unread(param.file, "cannot be read", error)) from error
    except UnicodeDecodeError:
        raise FillerError(f"{param.file} is not a text file") from None


def _number(word: str, file: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise FillerError(f"{file} holds {word!r}, which is not a number") from None


FILLERS: dict[str, Callable[[Array, caffe_pb2.FillerParameter], None]] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "gaussian_unitball": _gaussian_unitball,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
    "bilinear": _bilinear,
    "diagonal": _diagonal,
    "file": _file,
}


def fan(shape: tuple[int, ...], variance_norm: int) -> float:
    """Return the number of inputs of an output (FAN_IN), of outputs of an input (FAN_OUT), or the mean of both (AVERAGE)."""
    count = math.prod(shape)
    fan_in = count / shape[0] if shape else 1.0
    fan_out = count / shape[1] if len(shape) > 1 else float(count)  # an absent legacy axis has length 1
    if variance_norm == caffe_pb2.FillerParameter.AVERAGE:
        return (fan_in + fan_out) / 2
    return fan_out if variance_norm == caffe_pb2.FillerParameter.FAN_OUT else fan_in


def bilinear_kernel(size: int) -> NDArray[np.float64]:
    """Return a kernel (size, size): the outer product of a tent with itself, its peak near the middle."""
    factor = math.ceil(size / 2)
    centre = (size - 1) / (2 * factor) if size else 0.0
    tent: NDArray[np.float64] = 1 - np.abs(np.arange(size) / max(factor, 1) - centre)
    return np.outer(tent, tent)


def _draw_uniform(array: Array, low: float, high: float) -> None:
    rng.generator().random(out=array, dtype=array.dtype.type)
    array *= high - low
    array += low


def _draw_gaussian(array: Array, std: float) -> None:
    rng.generator().standard_normal(out=array, dtype=array.dtype.type)
    array *= std
