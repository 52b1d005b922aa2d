"""Depthwise convolutions: each channel has its own kernels, one or a few.

    y[c J + j, o] = sum over taps of weight[c J + j, tap] * x[c, o * stride - pad + tap * dilation]

They contain no product of matrices. A channel is laid out as runs (columns.py), so that one tap reads one run of numbers for
all windows. The sums add up a multiple of a run for each tap, some rows at a time, in a core's first cache; the epilogue
follows. Kernels of 3x3, those of most nets, need no layout in forward (depthwise_3x3.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.compiled import depthwise_3x3
from minicaffe.compiled.compiled_product import CompiledProduct
from minicaffe.compiled.depthwise_3x3 import convolve_maps
from minicaffe.compiled.jit import DynamicArray, Loop, Registers, ScratchArray, intrinsic, loop
from minicaffe.compiled.jobs import Calls
from minicaffe.compiled.vectors import Vectors, copy, copy_every_other
from minicaffe.layers.conv.columns import runs_of
from minicaffe.layers.conv.window import Window
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue
from minicaffe.threads import get_num_threads, parts, run

Pair = tuple[int, int]
Places = NDArray[np.int64]
Strips = tuple[Pair, Pair, Pair, int, Places, Places]
GradientStrips = tuple[Pair, Pair, Pair, int, Pair, Places, Places, Places, Places]
Shape = tuple[int, int, int, int, int, int]
Sizes = tuple[int, ...]
Shapes = tuple[Sizes, Sizes, Sizes]

at = np.uint64
"""An unsigned index, for which Numba does not check whether it counts from the end."""

PAIR = "UniTuple(int64, 2)"
STRIPS = f"Tuple(({PAIR}, {PAIR}, {PAIR}, int64, int64[::1], int64[:,::1]))"
GRADIENT_STRIPS = f"Tuple(({PAIR}, {PAIR}, {PAIR}, int64, {PAIR}, int64[:,::1], int64[::1], int64[::1], int64[::1]))"
SHAPE = "UniTuple(int64, 6)"
"""Numba's names for these types."""

FLOATS = np.dtype(np.float32), np.dtype(np.float64)

MOST_LANES = 128
"""Numbers of 8 vectors of 512 bits, which follow the sums."""

MOST_EACH = 4
"""Most kernels for each channel. With more, products of matrices are as fast."""

STRIP, STRIP_OF_TAPS = 2048, 512
"""Sums that are made at a time; STRIP_OF_TAPS: for sums made for each tap."""

MOST_LAID_OUT, MOST_PHASES = 1 << 20, 64
"""Most numbers of a strip that is laid out, and most phases. Larger dilations and strides are left to convolve.py."""

LEAST_WINDOWS = 512
"""Least windows of an image for the gradient of the weights. With fewer, products of matrices are as fast."""

TASK = 1 << 16
"""Least multiplications of a task, for about 2 us."""


def possible(weight: Sequence[int], group: int) -> bool:
    """Return whether weights of this shape (M, C / group, *kernel) are a depthwise convolution's, on maps of two axes."""
    return len(weight) == 4 and weight[1] == 1 < group and weight[0] <= MOST_EACH * group


def supports(x: Array, weight: Array, window: Window, group: int, y: Array) -> bool:
    """Return whether the compiled loops support this convolution of x (N, C, *map) to y (N, M, *windows)."""
    return (
        possible(weight.shape, group)
        and x.dtype in FLOATS
        and x.dtype == weight.dtype == y.dtype
        and x.flags.c_contiguous
        and weight.flags.c_contiguous
        and y.flags.c_contiguous
        and x.size * y.size > 0
        and _fits(window, y.shape[2:])
    )


def convolve(x: Array, weight: Array, window: Window, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """Compute y (N, C * J, *windows) = epilogue of x (N, C, *map) convolved with weight (C * J, 1, *kernel).

    y is overwritten.
    """
    product(window, (x.shape, weight.shape, y.shape), y.dtype, epilogue)(x, weight, y)


def product(window: Window, shapes: Shapes, dtype: np.dtype[Any], epilogue: Epilogue) -> CompiledProduct:
    """Return convolve for arrays of these shapes, as prepared calls."""
    return CompiledProduct(_calls(window, shapes, dtype, get_num_threads()), epilogue, shapes[1][0])


def data_gradient(dy: Array, weight: Array, window: Window, dx: Array) -> None:
    """Compute dx (N, C, *map) from dy (N, C * J, *windows) and weight (C * J, 1, *kernel): convolve's transpose.

    Overwrites dx.
    """
    strips, shape = _gradient_strips(window, dy.shape[2:]), _shape(dx.shape, dy.shape)
    source, kernels, to = dy.reshape(-1), weight.reshape(-1), dx.reshape(-1)
    tasks = _tasks(dx.shape[1], dy[0].size * math.prod(window.kernel))
    run(
        partial(channels_gradient, source, kernels, strips, to, shape, (n, part.start, part.stop))
        for n in range(len(dx))
        for part in tasks
    )


def add_weight_gradient(x: Array, dy: Array, window: Window, dweight: Array) -> None:
    """Add the gradient from dy (N, C * J, *windows) and x (N, C, *map) to dweight (C * J, 1, *kernel)."""
    strips, shape = _strips(window, dy.shape[2:], STRIP_OF_TAPS), _shape(x.shape, dy.shape)
    of, by, to = x.reshape(-1), dy.reshape(-1), dweight.reshape(-1)
    tasks = _tasks(x.shape[1], dy.size * math.prod(window.kernel))
    run(partial(kernels_gradient, of, by, strips, to, shape, (len(x), part.start, part.stop)) for part in tasks)


def _emit_runs(builder: Any, registers: Registers, *given: Any) -> None:
    """Emit add_runs: a few vectors of sums at a time stay in registers while all taps are added."""
    from numba.core import cgutils

    line, starts, weight, sums, after, first, last, row, length, channel, channels, forward = given
    int64, vectors, together = first.type, Vectors(builder, line.type.pointee, registers.lanes), registers.count // 4
    with cgutils.for_range_slice(builder, int64(0), length, int64(together * registers.lanes), int64) as (i, _):
        to, is_forward = builder.gep(sums, [i]), builder.icmp_signed("!=", forward, int64(0))
        begun = [builder.select(is_forward, vectors.zero, value) for value in vectors.load(to, together)]
        before, loop = builder.block, builder.append_basic_block("taps")
        builder.branch(loop)
        builder.position_at_end(loop)
        k, totals = builder.phi(int64), [builder.phi(vectors.type) for _ in begun]
        factor = vectors.everywhere(builder.load(builder.gep(weight, [builder.add(row, k)])))
        run = builder.gep(line, [builder.add(builder.load(builder.gep(starts, [k])), i)])
        made = [vectors.add_product(total, factor, x) for total, x in zip(totals, vectors.load(run, together))]
        following = builder.add(k, int64(1))
        for phi, start, then in zip([k, *totals], [first, *begun], [following, *made]):
            phi.add_incoming(start, before)
            phi.add_incoming(then, loop)
        end = builder.append_basic_block("added")
        builder.cbranch(builder.icmp_signed("<", following, last), loop, end)
        builder.position_at_end(end)
        with builder.if_else(is_forward) as (finish, leave):
            with finish:
                scale = builder.gep(after, [channel])
                shift, slope = (builder.gep(scale, [builder.mul(channels, int64(i))]) for i in (1, 2))
                sloped = vectors.is_slope(builder.load(slope))
                vectors.store(vectors.epilogue(made, vectors.everywhere_of((scale, shift, slope)), sloped), to)
            with leave:
                vectors.store(made, to)


@intrinsic(_emit_runs)
def add_runs(  # noqa: PLR0913, PLR0917
    line: Array,
    starts: Places,
    weight: Array,
    sums: Array,
    after: Array,
    first: int,
    last: int,
    row: int,
    length: int,
    channel: int,
    channels: int,
    forward: int,
) -> None:
    """Compute sums[i] += weight[row + k] * line[starts[k] + i], i < length, for all k from first to last - 1, at least one.

    forward: = in place of +=, and then the epilogue, with the channel's scale, shift and slope in after (3, channels), flat.
    Up to MOST_LANES numbers after these are also read and overwritten.
    """
    for i in range(length):
        total = 0 if forward else sums[i]
        for k in range(first, last):
            total += weight[row + k] * line[starts[k] + i]
        if forward:
            total = total * after[channel] + after[channels + channel]
            total = total if not total < 0 else total * after[2 * channels + channel] if after[2 * channels + channel] else 0
        sums[i] = total


@loop(f"T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], {STRIPS}, {SHAPE}, UniTuple(int64, 3)", in_calls=True)
def convolve_channels(  # noqa: PLR0913, PLR0917
    x: Array,
    weight: Array,
    after: Array,
    y: Array,
    line: Array,
    sums: Array,
    strips: Strips,
    shape: Shape,
    part: tuple[int, int, int],
) -> None:
    """Compute y for channels first to last - 1 of image n: x convolved with the weights, then the epilogue.

    strips: stride, pad, the size of a phase of some rows of windows, the number of these rows, where each tap's run begins in
    the phases, and the phases' numbers. after (3, M), flat: scale, shift, slope. shape: channels, kernels of each, the sizes of
    x's and y's maps. part: n, first, last. line and sums: memory (memory_sizes).
    """
    (stride, pad, size, rows, starts, phases), (n, first, last) = strips, part
    channels, each, height, across, down, width = shape
    pitch, taps = size[1], len(starts)
    line[:] = 0
    for c in range(first, last):
        for top in range(0, down, rows):
            lay_out(x, ((n * channels + c) * height * across, height, across), top, (stride, pad, size), phases, line)
            for m in range(c * each, c * each + each):
                add_runs(line, starts, weight, sums, after, 0, taps, m * taps, rows * pitch, m, channels * each, 1)
                to = ((n * channels * each + m) * down + top) * width
                for i in range(min(rows, down - top)):
                    copy(sums, i * pitch, y, to + i * width, width)


@loop(f"T[::1], T[::1], {GRADIENT_STRIPS}, T[::1], {SHAPE}, UniTuple(int64, 3)")
def channels_gradient(
    dy: Array, weight: Array, strips: GradientStrips, dx: Array, shape: Shape, part: tuple[int, int, int]
) -> None:
    """Compute dx for channels first to last - 1 of image n, phase by phase, from dy with a border and the taps of the phase.

    strips: stride, pad, the size of a whole phase, the number of its rows computed at a time, dy's border, the phases (Q, 2),
    where each tap's run begins in dy, the taps sorted by phase, and where each phase's taps end. shape: channels, kernels of
    each, the sizes of dx's and dy's maps. part: n, first, last.
    """
    (stride, pad, size, rows, border, phases, starts, taps, ends), (n, first, last) = strips, part
    channels, each, height, width, down, over = shape
    pitch, count = size[1], len(taps)
    line = np.zeros((rows + border[0]) * pitch + pitch + MOST_LANES, dy.dtype)
    sums, one, whole = np.empty(rows * pitch + MOST_LANES, dy.dtype), (1, 1), np.zeros((1, 1), np.int64)
    kernel = np.empty(count, dy.dtype)
    for c in range(first, last):
        origin = (n * channels + c) * height * width
        for i in range(height * width):
            dx[at(origin + i)] = 0
        for top in range(0, size[0], rows):
            for q in range(len(phases)):
                start = ends[q - 1] if q else 0
                sums[:] = 0
                for m in range(c * each, c * each + each):
                    if q == 0 or each > 1:
                        map_ = (n * channels * each + m) * down * over, down, over
                        lay_out(dy, map_, top, (one, border, (rows + border[0], pitch)), whole, line)
                    for k in range(start, ends[q]):
                        kernel[k] = weight[m * count + taps[k]]
                    if start < ends[q]:
                        add_runs(line, starts, kernel, sums, kernel, start, ends[q], 0, rows * pitch, 0, 0, 0)
                for i in range(min(rows, size[0] - top)):
                    h, left = (top + i) * stride[0] + phases[q, 0] - pad[0], phases[q, 1] - pad[1]
                    if 0 <= h < height:
                        low, high = inside(left, stride[1], width, pitch)
                        to = origin + h * width + left
                        if stride[1] == 1:
                            copy(sums, i * pitch + low, dx, to + low, high - low)
                        else:
                            for j in range(low, high):
                                dx[at(to + j * stride[1])] = sums[at(i * pitch + j)]


@loop(f"T[::1], T[::1], {STRIPS}, T[::1], {SHAPE}, UniTuple(int64, 3)")
def kernels_gradient(x: Array, dy: Array, strips: Strips, dweight: Array, shape: Shape, part: tuple[int, int, int]) -> None:
    """Add to dweight (M * taps), for channels first to last - 1, the sums of dy times what each tap sees.

    strips, shape: as in convolve_channels. part: images, first, last.
    """
    (stride, pad, size, rows, starts, phases), (images, first, last) = strips, part
    channels, each, height, across, down, width = shape
    pitch, one, none = size[1], (1, 1), (0, 0)
    line = np.zeros(phases.size * size[0] * pitch + pitch, x.dtype)
    beside, whole = np.zeros(rows * pitch + pitch, x.dtype), np.zeros((1, 1), np.int64)
    sums = np.empty((len(starts), rows * pitch), x.dtype)
    for c in range(first, last):
        for m in range(c * each, c * each + each):
            sums[:] = 0
            for n in range(images):
                for top in range(0, down, rows):
                    map_ = (n * channels + c) * height * across, height, across
                    lay_out(x, map_, top, (stride, pad, size), phases, line)
                    map_ = (n * channels * each + m) * down * width, down, width
                    lay_out(dy, map_, top, (one, none, (rows, pitch)), whole, beside)
                    length = min(rows, down - top) * pitch
                    for k in range(len(starts)):
                        of, values = sums[k], line[starts[k] :]
                        for i in range(length):
                            of[i] += values[i] * beside[i]
            for k in range(len(starts)):
                sum_up(sums[k], rows, pitch, width)
                dweight[m * len(starts) + k] += sums[k, 0]


@loop(f"T[::1], UniTuple(int64, 3), int64, UniTuple({PAIR}, 3), int64[:,::1], T[::1]")
def lay_out(
    x: Array, map_: tuple[int, int, int], first: int, geometry: tuple[Pair, Pair, Pair], phases: Places, line: Array
) -> None:
    """Lay out one channel's phases, one after the other, in line, for the windows from row `first` on.

    map_: where it begins in x, its height and width. geometry: stride, pad, the size of a phase.
    phases: the number of each phase, negative for one that no tap sees. Rows off the map become 0; columns off it stay 0.
    """
    (origin, down, across), (stride, pad, (height, pitch)) = map_, geometry
    for phase in range(stride[0]):
        top = first * stride[0] + phase - pad[0]
        low, high = inside(top, stride[0], down, height)
        for left in range(stride[1]):  # columns left, left + stride, ... belong to one phase
            q, start = phases[phase, (left + pad[1]) % stride[1]], (left + pad[1]) // stride[1]
            if q < 0:
                continue
            to = q * height * pitch + start
            width = min(pitch - start, (across - left + stride[1] - 1) // stride[1])
            for i in range(height):
                row = origin + (top + i * stride[0]) * across + left
                if i < low or i >= high:
                    for j in range(width):
                        line[at(to + j)] = 0
                elif stride[1] == 1:
                    copy(x, row, line, to, width)
                elif stride[1] == 2:
                    copy_every_other(x, row, line, to, width)
                else:
                    for j in range(width):
                        line[at(to + j)] = x[at(row + j * stride[1])]
                to += pitch


@loop("int64, int64, int64, int64")
def inside(left: int, stride: int, width: int, size: int) -> Pair:
    """Return the range of the `size` columns left, left + stride, ... that lie on a map of this width."""
    low = min(size, max(0, -(left // stride)))
    return low, max(low, min(size, (width - 1 - left) // stride + 1))


@loop("T[::1], int64, int64, int64")
def sum_up(values: Array, rows: int, pitch: int, width: int) -> None:
    """Set values[0] to the sum of rows of this width, which begin every `pitch` values.

    Overwrites values: half of the rows are added to the others until one is left.
    """
    while rows > 1:
        half = (rows + 1) // 2
        others = values[half * pitch :]
        for i in range((rows - half) * pitch):
            values[i] += others[i]
        rows = half
    for j in range(1, width):
        values[0] += values[j]


def forward_loop(window: Window) -> Loop[Any]:
    """Return the loop that convolves such windows."""
    return convolve_maps if depthwise_3x3.supports(window) else convolve_channels


@lru_cache(maxsize=1024)
def _calls(window: Window, shapes: Shapes, dtype: np.dtype[Any], threads: int) -> Calls:
    """Return the calls of the loop that convolves arrays of these shapes, for this number of threads."""
    x, _, y = shapes
    convolve_some, shape, multiplications = forward_loop(window), _shape(x, y), math.prod(y) * math.prod(window.kernel)
    arrays = (*(DynamicArray(0, (math.prod(sizes),)) for sizes in (*shapes[:2], (3, y[1]), y)),)
    cuts: list[tuple[Any, ...]]
    if convolve_some is convolve_maps:
        map_ = *shape, *window.pad, window.stride[0]
        # a multiplication takes half as long here; maps count too
        tasks = _tasks(x[0] * x[1], multiplications // 2 + math.prod(x), threads)
        spare = ScratchArray(0, (depthwise_3x3.memory_size(map_),))
        cuts = [(spare, map_, (part.start, part.stop)) for part in tasks]
    else:
        strips, tasks = _strips(window, _pair(y[2:]), STRIP), _tasks(x[1], multiplications // x[0], threads)
        line, sums = memory_sizes(strips)
        memory = ScratchArray(0, (line,)), ScratchArray(line * dtype.itemsize, (sums,))
        cuts = [(*memory, strips, shape, (n, part.start, part.stop)) for n in range(x[0]) for part in tasks]
    return Calls(convolve_some, dtype, [(*arrays, *cut) for cut in cuts])


def memory_sizes(strips: Strips) -> tuple[int, int]:
    """Return the lengths of line and sums, with room for whole vectors."""
    _, _, (height, pitch), rows, _, phases = strips
    line, sums = phases.size * height * pitch + pitch + MOST_LANES, rows * pitch + MOST_LANES
    return -(-line // MOST_LANES) * MOST_LANES, sums


def _tasks(channels: int, multiplications: int, threads: int | None = None) -> list[slice]:
    """Return slices of the channels for the threads (see `parts`). The slices do not affect the results."""
    return parts(channels, max(1, channels * TASK // max(1, multiplications)), 2, threads)


def _shape(x: Sequence[int], y: Sequence[int]) -> Shape:
    """Return channels, kernels of each, and the sizes of the maps of x (N, C, *map) and y (N, C * J, *windows)."""
    (_, channels, height, width), (_, filters, down, over) = x, y
    return channels, filters // channels, height, width, down, over


def _pair(numbers: Sequence[int]) -> Pair:
    return numbers[0], numbers[1]


@lru_cache(maxsize=512)
def _fits(window: Window, output: tuple[int, ...]) -> bool:
    """Return whether a strip's phases are neither too many nor too large."""
    phases = math.prod(window.stride)
    return phases <= MOST_PHASES and phases * _laid_out(window, output) <= MOST_LAID_OUT


def _laid_out(window: Window, output: tuple[int, ...]) -> int:
    """Return about how many numbers a phase of a strip holds."""
    reach = [(extent - 1) // stride for extent, stride in zip(window.extent, window.stride)]
    pitch = output[1] + reach[1]
    return (_rows(output[0], STRIP // pitch) + reach[0]) * pitch


@lru_cache(maxsize=512)
def _strips(window: Window, output: Pair, most: int) -> Strips:
    """Return convolve_channels' strips, of about `most` sums each."""
    rows = _rows(output[0], most // (output[1] + (window.extent[1] - 1) // window.stride[1]))
    runs = runs_of(window, (rows, output[1]))
    phases = np.full(window.stride, -1, np.int64)
    phases[tuple(np.transpose(runs.phases))] = range(len(runs.phases))
    size = runs.size[0], runs.size[1]
    return _pair(window.stride), _pair(window.pad), size, rows, np.array(runs.starts, np.int64), phases


@lru_cache(maxsize=512)
def _gradient_strips(window: Window, output: Pair) -> GradientStrips:
    """Return channels_gradient's strips."""
    runs = runs_of(window, output)
    height, pitch = runs.size
    border = height - output[0], pitch - output[1]
    phase, start = np.divmod(np.array(runs.starts, np.int64), height * pitch)
    taps = np.argsort(phase, kind="stable")
    ends = np.cumsum(np.bincount(phase, minlength=len(runs.phases)))
    # A tap that reads a phase `start` pixels ahead gives its gradient to pixels as far back.
    starts = border[0] * pitch + border[1] - start[taps]
    rows, phases = _rows(height, STRIP // pitch), np.array(runs.phases, np.int64)
    return _pair(window.stride), _pair(window.pad), (height, pitch), rows, border, phases, starts, taps, ends


def _rows(length: int, most: int) -> int:
    """Return the length of the parts if length is cut into nearly equal parts of at most `most`."""
    return math.ceil(length / math.ceil(length / max(1, most)))
