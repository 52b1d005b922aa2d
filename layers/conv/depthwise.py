"""Convolutions with one group for each channel: every channel by its own kernels, one or a few each.

    y[c J + j, o] = sum over taps of weight[c J + j, tap] * x[c, o * stride - pad + tap * dilation]

There is no product of matrices in them. A channel is laid out as runs (runs.py), so that what one tap sees over all windows is
one run of numbers: the sums are as many multiples of runs as the kernel has taps, added up in a core's first cache, some rows
at a time, with the epilogue behind them. Without compiled loops, convolve.py makes columns of several channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.loops import Loop, loop
from minicaffe.threads import parts, run

from .epilogue import NOTHING, Epilogue
from .runs import runs_of
from .window import Window

Pair = tuple[int, int]
Places = NDArray[np.int64]
Strips = tuple[Pair, Pair, Pair, int, Places, Places]
GradientStrips = tuple[Pair, Pair, Pair, int, Pair, Places, Places, Places, Places]
After = tuple[Array, Array, Any]
Loops = tuple[Sequence[Loop[Any]], Sequence[Loop[Any]]]

PAIR = "UniTuple(int64, 2)"
STRIPS = f"Tuple(({PAIR}, {PAIR}, {PAIR}, int64, int64[::1], int64[:,::1]))"
GRADIENT_STRIPS = f"Tuple(({PAIR}, {PAIR}, {PAIR}, int64, {PAIR}, int64[:,::1], int64[::1], int64[::1], int64[::1]))"
"""Numba's names for these types."""

MOST_EACH = 4
"""Kernels for each channel; with more, products of matrices are as fast."""

STRIP, STRIP_OF_TAPS = 2048, 512
"""Sums that are made at a time; STRIP_OF_TAPS: where they are made for each tap."""

MOST_LAID_OUT, MOST_PHASES = 1 << 20, 64
"""Numbers of a strip laid out, and phases: large dilations and strides are left to convolve.py."""

LEAST_WINDOWS = 512
"""Of an image, for the gradient of the weights: for fewer, products of matrices are as fast."""

TASK = 1 << 20
"""Multiplications of a task, at least: with fewer, waking a thread takes as long."""


def possible(weight: Sequence[int], group: int) -> bool:
    """Whether a convolution with weights of this shape (M, C / group, *kernel) is one of these, of maps of two axes."""
    return len(weight) == 4 and weight[1] == 1 < group and weight[0] <= MOST_EACH * group


def suits(x: Array, weight: Array, window: Window, group: int, y: Array) -> bool:
    """Whether the compiled loops take this convolution of x (N, C, *map) to y (N, M, *windows)."""
    arrays = (x, weight, y)
    return (
        possible(weight.shape, group)
        and loops.compiled()
        and x.dtype in (np.float32, np.float64)
        and all(a.dtype == x.dtype and a.flags.c_contiguous and a.size for a in arrays)
        and math.prod(window.stride) <= MOST_PHASES
        and math.prod(window.stride) * _laid_out(window, y.shape[2:]) <= MOST_LAID_OUT
    )


def convolve(x: Array, weight: Array, window: Window, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """y (N, C * J, *windows) = epilogue of x (N, C, *map) convolved with weight (C * J, 1, *kernel); y is overwritten."""
    matrix, strips, after = _matrix(weight), _strips(window, y.shape[2:], STRIP), _after(epilogue, len(weight), y.dtype)
    tasks = _tasks(x.shape[1], y[0].size * matrix.shape[1])
    run(
        partial(convolve_channels, x, matrix, strips, after, y, (n, part.start, part.stop))
        for n in range(len(x))
        for part in tasks
    )


def data_gradient(dy: Array, weight: Array, window: Window, dx: Array) -> None:
    """dx (N, C, *map) from dy (N, C * J, *windows) and weight (C * J, 1, *kernel): convolve's transpose; overwrites dx."""
    matrix, strips = _matrix(weight), _gradient_strips(window, dy.shape[2:])
    tasks = _tasks(dx.shape[1], dy[0].size * matrix.shape[1])
    run(
        partial(channels_gradient, dy, matrix, strips, dx, (n, part.start, part.stop)) for n in range(len(dx)) for part in tasks
    )


def add_weight_gradient(x: Array, dy: Array, window: Window, dweight: Array) -> None:
    """Add to dweight (C * J, 1, *kernel) what dy (N, C * J, *windows) and x (N, C, *map) give."""
    matrix, strips = _matrix(dweight), _strips(window, dy.shape[2:], STRIP_OF_TAPS)
    tasks = _tasks(x.shape[1], dy.size * matrix.shape[1])
    run(partial(kernels_gradient, x, dy, strips, matrix, (part.start, part.stop)) for part in tasks)


@loop(f"T[:,:,:,::1], T[:,::1], {STRIPS}, Tuple((T[::1], T[::1], T)), T[:,:,:,::1], UniTuple(int64, 3)")
def convolve_channels(x: Array, weight: Array, strips: Strips, after: After, y: Array, part: tuple[int, int, int]) -> None:
    """Of image n, the channels from first to last: y = x by the weights, times scale, plus shift; below 0 times slope.

    strips: stride, pad, the size of the phases of some rows of windows, how many rows, where each tap's run begins in the
    phases, and their numbers; after: scale, shift, slope; part: n, first, last.
    """
    (stride, pad, size, rows, starts, phases), (scale, shift, slope), (n, first, last) = strips, after, part
    each, width, pitch = len(weight) // x.shape[1], y.shape[3], size[1]
    line = np.zeros(phases.size * size[0] * pitch + pitch, x.dtype)
    sums, zero = np.empty(rows * pitch, x.dtype), slope - slope
    for c in range(first, last):
        for top in range(0, y.shape[2], rows):
            lay_out(x[n, c], top, (stride, pad, size), phases, line)
            for m in range(c * each, c * each + each):
                sums[:] = 0
                add_runs(line, starts, weight[m], sums)
                times, plus = scale[m], shift[m]
                for i in range(min(rows, y.shape[2] - top)):
                    row, of = y[n, m, top + i], sums[i * pitch : i * pitch + width]
                    for j in range(width):
                        value = of[j] * times + plus
                        if value < 0:
                            value = zero if slope == 0 else value * slope  # 0 for -inf, too
                        row[j] = value


@loop(f"T[:,:,:,::1], T[:,::1], {GRADIENT_STRIPS}, T[:,:,:,::1], UniTuple(int64, 3)")
def channels_gradient(dy: Array, weight: Array, strips: GradientStrips, dx: Array, part: tuple[int, int, int]) -> None:
    """Of image n, dx of the channels from first to last, phase by phase: dy, with a border, by the taps that see the phase.

    strips: stride, pad, the size of a whole phase, how many of its rows are computed at a time, dy's border, the phases
    (Q, 2), and their taps: those up to ends[phase], and where each one's run begins in dy; part: n, first, last.
    """
    (stride, pad, size, rows, border, phases, starts, taps, ends), (n, first, last) = strips, part
    each, pitch, (height, width) = len(weight) // dx.shape[1], size[1], dx.shape[2:]
    line = np.zeros((rows + border[0]) * pitch + pitch, dy.dtype)
    sums, one, whole = np.empty(rows * pitch, dy.dtype), (1, 1), np.zeros((1, 1), np.int64)
    kernel = np.empty(len(taps), dy.dtype)
    for c in range(first, last):
        dx[n, c] = 0
        for top in range(0, size[0], rows):
            for q in range(len(phases)):
                start = ends[q - 1] if q else 0
                sums[:] = 0
                for m in range(c * each, c * each + each):
                    if q == 0 or each > 1:
                        lay_out(dy[n, m], top, (one, border, (rows + border[0], pitch)), whole, line)
                    for k in range(start, ends[q]):
                        kernel[k] = weight[m, taps[k]]
                    add_runs(line, starts[start : ends[q]], kernel[start : ends[q]], sums)
                for i in range(min(rows, size[0] - top)):
                    h, left = (top + i) * stride[0] + phases[q, 0] - pad[0], phases[q, 1] - pad[1]
                    if 0 <= h < height:
                        row, of = dx[n, c, h], sums[i * pitch : i * pitch + pitch]
                        low, high = inside(left, stride[1], width, pitch)
                        row, of = row[left + low * stride[1] :], of[low:high]
                        if stride[1] == 1:
                            for j in range(len(of)):
                                row[j] = of[j]
                        else:
                            for j in range(len(of)):
                                row[j * stride[1]] = of[j]


@loop(f"T[:,:,:,::1], T[:,:,:,::1], {STRIPS}, T[:,::1], UniTuple(int64, 2)")
def kernels_gradient(x: Array, dy: Array, strips: Strips, dweight: Array, part: Pair) -> None:
    """Add to dweight (M, taps) of the channels from first to last the sums of dy times what each tap sees.

    strips: as convolve_channels'; part: first, last.
    """
    (stride, pad, size, rows, starts, phases), (first, last) = strips, part
    each, pitch, width, one, none = len(dweight) // x.shape[1], size[1], dy.shape[3], (1, 1), (0, 0)
    line = np.zeros(phases.size * size[0] * pitch + pitch, x.dtype)
    beside, whole = np.zeros(rows * pitch + pitch, x.dtype), np.zeros((1, 1), np.int64)
    sums = np.empty((len(starts), rows * pitch), x.dtype)
    for c in range(first, last):
        for m in range(c * each, c * each + each):
            sums[:] = 0
            for n in range(len(x)):
                for top in range(0, dy.shape[2], rows):
                    lay_out(x[n, c], top, (stride, pad, size), phases, line)
                    lay_out(dy[n, m], top, (one, none, (rows, pitch)), whole, beside)
                    length = min(rows, dy.shape[2] - top) * pitch
                    for k in range(len(starts)):
                        of, values = sums[k], line[starts[k] :]
                        for i in range(length):
                            of[i] += values[i] * beside[i]
            for k in range(len(starts)):
                sum_up(sums[k], rows, pitch, width)
                dweight[m, k] += sums[k, 0]


@loop(f"T[:,::1], int64, UniTuple({PAIR}, 3), int64[:,::1], T[::1]")
def lay_out(x: Array, first: int, geometry: tuple[Pair, Pair, Pair], phases: Places, line: Array) -> None:
    """One channel's phases, one after the other in line, for the windows from row `first` on.

    geometry: stride, pad, the size of a phase;
    phases: the number of each phase, below 0 for one that no tap sees. Rows off the map become 0; columns off it stay 0.
    """
    stride, pad, (height, pitch) = geometry
    for phase in range(stride[0]):
        top = first * stride[0] + phase - pad[0]
        low, high = inside(top, stride[0], len(x), height)
        for left in range(stride[1]):  # the columns left, left + stride, ... are of one phase
            q, start = phases[phase, (left + pad[1]) % stride[1]], (left + pad[1]) // stride[1]
            if q < 0:
                continue
            rows = line[q * height * pitch + start :]
            width = min(pitch - start, (x.shape[1] - left + stride[1] - 1) // stride[1])
            for i in range(height):
                if i < low or i >= high:
                    to = rows[i * pitch :]
                    for j in range(width):
                        to[j] = 0
            if stride[1] == 1:
                for i in range(low, high):
                    row, to = x[top + i * stride[0]], rows[i * pitch :]
                    for j in range(width):
                        to[j] = row[j]
            else:
                for i in range(low, high):
                    row, to = x[top + i * stride[0], left:], rows[i * pitch :]
                    for j in range(width):
                        to[j] = row[j * stride[1]]


@loop("int64, int64, int64, int64")
def inside(left: int, stride: int, width: int, size: int) -> Pair:
    """From which to which of `size` columns at left, left + stride, ... lie on a map of that width."""
    low = min(size, max(0, -(left // stride)))
    return low, max(low, min(size, (width - 1 - left) // stride + 1))


@loop("T[::1], int64, int64, int64")
def sum_up(values: Array, rows: int, pitch: int, width: int) -> None:
    """values[0] = the sum of rows of this width, which begin every `pitch` values. Overwrites values: half of the rows are
    added to the others until one is left."""
    while rows > 1:
        half = (rows + 1) // 2
        others = values[half * pitch :]
        for i in range((rows - half) * pitch):
            values[i] += others[i]
        rows = half
    for j in range(1, width):
        values[0] += values[j]


@loop("T[::1], int64[::1], T[::1], T[::1]")
def add_runs(line: Array, starts: Places, weight: Array, sums: Array) -> None:
    """sums += weight[k] * the run of line from starts[k] on, for all k: three at a time, which reads and writes sums less."""
    length, triples = len(sums), len(starts) - len(starts) % 3
    for k in range(0, triples, 3):
        a, b, c = weight[k], weight[k + 1], weight[k + 2]
        p, q, r = line[starts[k] :], line[starts[k + 1] :], line[starts[k + 2] :]
        for i in range(length):
            sums[i] += a * p[i] + b * q[i] + c * r[i]
    for k in range(triples, len(starts)):
        a, p = weight[k], line[starts[k] :]
        for i in range(length):
            sums[i] += a * p[i]


LOOPS: Loops = (convolve_channels,), (kernels_gradient, channels_gradient)
TURNED_LOOPS: Loops = (channels_gradient,), (kernels_gradient, convolve_channels)
"""What forward and backward of such a Convolution run, and of such a Deconvolution."""


def _tasks(channels: int, multiplications: int) -> list[slice]:
    """The channels, divided among the threads. The parts do not matter to the results."""
    return parts(channels, least=max(1, channels * TASK // max(1, multiplications)), each=2)


def _after(epilogue: Epilogue, filters: int, dtype: np.dtype[Any]) -> After:
    """The epilogue's scale, shift and slope, for each filter; what it leaves out changes nothing."""
    scale = np.ones(filters, dtype) if epilogue.scale is None else epilogue.scale
    shift = np.full(filters, -0.0, dtype) if epilogue.shift is None else epilogue.shift  # 0 would make 0 of -0
    slope = 1 if epilogue.negative_slope is None else epilogue.negative_slope
    return np.ascontiguousarray(scale, dtype), np.ascontiguousarray(shift, dtype), dtype.type(slope)


def _matrix(weight: Array) -> Array:
    """weight (M, 1, *kernel) as (M, taps): a view."""
    return weight.reshape(len(weight), -1)


def _pair(numbers: Sequence[int]) -> Pair:
    return numbers[0], numbers[1]


def _laid_out(window: Window, output: tuple[int, ...]) -> int:
    """About how many numbers a phase of a strip holds."""
    reach = [(extent - 1) // stride for extent, stride in zip(window.extent, window.stride)]
    pitch = output[1] + reach[1]
    return (_rows(output[0], STRIP // pitch) + reach[0]) * pitch


@lru_cache(maxsize=512)
def _strips(window: Window, output: Pair, most: int) -> Strips:
    """convolve_channels' strips, of about `most` sums each."""
    rows = _rows(output[0], most // (output[1] + (window.extent[1] - 1) // window.stride[1]))
    runs = runs_of(window, (rows, output[1]))
    phases = np.full(window.stride, -1)
    phases[tuple(np.transpose(runs.phases))] = range(len(runs.phases))
    size = runs.size[0], runs.size[1]
    return _pair(window.stride), _pair(window.pad), size, rows, np.array(runs.starts), phases


@lru_cache(maxsize=512)
def _gradient_strips(window: Window, output: Pair) -> GradientStrips:
    """channels_gradient's strips."""
    runs = runs_of(window, output)
    height, pitch = runs.size
    border = height - output[0], pitch - output[1]
    phase, start = np.divmod(np.array(runs.starts), height * pitch)
    taps = np.argsort(phase, kind="stable")
    ends = np.cumsum(np.bincount(phase, minlength=len(runs.phases)))
    # a tap that sees a phase so many pixels on gives to pixels so many behind
    starts = border[0] * pitch + border[1] - start[taps]
    rows, phases = _rows(height, STRIP // pitch), np.array(runs.phases)
    return _pair(window.stride), _pair(window.pad), (height, pitch), rows, border, phases, starts, taps, ends


def _rows(length: int, most: int) -> int:
    """length in nearly equal parts of at most `most`: how long each is."""
    return math.ceil(length / math.ceil(length / max(1, most)))
