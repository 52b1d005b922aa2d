"""LRN: local response normalisation, y = x / scale^beta.

    ACROSS_CHANNELS: scale = k + alpha / local_size * sum of x^2 over local_size channels around this one
    WITHIN_CHANNEL:  scale = 1 + alpha / local_size^2 * sum of x^2 over local_size x local_size pixels around this one
Channels and pixels off the map count as 0, and stay in the divisor. Within a channel k is not looked at.
Source: Krizhevsky et al. 2012, section 3.3; Caffe's lrn_layer.cpp.

With nets' beta, 0.75, the loops below are the formula: that power is two square roots. NumPy works by blocks that stay in
cache, and with few additions: a sum over 5 neighbours is one of 4, which is a sum of two sums of 2, and one more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from minicaffe import loops
from minicaffe.blob import Array, Blob
from minicaffe.blocks import Scratch
from minicaffe.layer import Layer
from minicaffe.loops import Loop, loop
from minicaffe.proto import caffe_pb2
from minicaffe.threads import parts, run

WITHIN_CHANNEL = caffe_pb2.LRNParameter.NormRegion.Value("WITHIN_CHANNEL")

BLOCK = 1 << 17
"""About how many numbers are worked on at a time, so that they stay in cache."""

SHORTEST_RUN = 64
"""Fewest pixels of a map taken at a time."""

STRIP = 512
"""Pixels of all channels that a loop works on at a time: few enough to stay in cache."""

LONGEST_SUM = 15
"""Most channels, or pixels of a row, that the loops add up; NumPy's way has fewer additions for more."""


@loop("T[:,::1], UniTuple(int64, 2), int64, UniTuple(T, 2), T[:,::1], T[:,::1]")
def normalise(x: Array, part: tuple[int, int], size: int, constants: tuple[float, float], y: Array, room: Array) -> None:
    """y (C, pixels) of x (C, pixels) of an image, from one pixel to before another. constants: alpha / size and k; room: memory
    (C + 1, STRIP)."""
    (start, stop), (alpha, k) = part, constants
    for c in range(len(x)):
        own, out, total = x[c, start:stop], y[c, start:stop], room[c, : stop - start]
        total[:] = 0
        for near in range(max(c - size // 2, 0), min(c + size // 2 + 1, len(x))):
            row = x[near, start:stop]
            for j in range(len(total)):
                total[j] += row[j] * row[j]
        for j in range(len(own)):
            root = np.sqrt(k + alpha * total[j])
            out[j] = own[j] / (root * np.sqrt(root))


@loop("Tuple((T[:,::1], T[:,::1])), UniTuple(int64, 2), int64, UniTuple(T, 2), T[:,::1], T[:,::1]")
def normalise_backward(
    both: tuple[Array, Array], part: tuple[int, int], size: int, constants: tuple[float, float], dx: Array, room: Array
) -> None:
    """dx (C, pixels) of x and dy, both (C, pixels), as in normalise.

    dx_c = dy_c scale_c^-beta - 2 alpha / size beta x_c * sum over the channels around of dy x scale^(-beta - 1)
    """
    (x, dy), (start, stop), (alpha, k) = both, part, constants
    total = room[len(x), : stop - start]
    for c in range(len(x)):
        own, given, out, ratio = x[c, start:stop], dy[c, start:stop], dx[c, start:stop], room[c]
        total[:] = 0
        for near in range(max(c - size // 2, 0), min(c + size // 2 + 1, len(x))):
            row = x[near, start:stop]
            for j in range(len(total)):
                total[j] += row[j] * row[j]
        for j in range(len(own)):
            scale = k + alpha * total[j]
            root = np.sqrt(scale)
            out[j] = given[j] / (root * np.sqrt(root))
            ratio[j] = out[j] * own[j] / scale
    factor = alpha + alpha / 2  # 2 alpha beta
    for c in range(len(x)):
        value, result = x[c, start:stop], dx[c, start:stop]
        total[:] = 0
        for near in range(max(c - size // 2, 0), min(c + size // 2 + 1, len(x))):
            ratio = room[near]
            for j in range(len(total)):
                total[j] += ratio[j]
        for j in range(len(value)):
            result[j] -= factor * value[j] * total[j]


@loop("T[:,:,::1], int64, UniTuple(T, 2), T[:,:,::1], T[:,::1]")
def normalise_within(x: Array, size: int, constants: tuple[float, float], y: Array, room: Array) -> None:
    """y (maps, H, W) of x (maps, H, W). constants: alpha / size^2 and 1; room: memory (size + 2, W + size - 1)."""
    (_, height, width), (alpha, k) = x.shape, constants
    columns, total = room[0], room[1, :width]
    columns[:] = 0  # as they stay past the ends
    for m in range(len(x)):
        for h in range(height):
            _sum_squares(x[m], h, size, columns, total)
            own, out = x[m, h], y[m, h]
            for j in range(width):
                root = np.sqrt(k + alpha * total[j])
                out[j] = own[j] / (root * np.sqrt(root))


@loop("Tuple((T[:,:,::1], T[:,:,::1])), int64, UniTuple(T, 2), T[:,:,::1], T[:,::1]")
def normalise_within_backward(
    both: tuple[Array, Array], size: int, constants: tuple[float, float], dx: Array, room: Array
) -> None:
    """dx (maps, H, W) of x and dy, both (maps, H, W), as in normalise_backward; the sums are over the pixels around."""
    (x, dy), (alpha, k), half = both, constants, size // 2
    _, height, width = x.shape
    columns, total = room[0], room[1, :width]  # behind them: the ratios of the last `size` rows
    inner = columns[half : half + width]
    columns[:] = 0
    factor = alpha + alpha / 2  # 2 alpha beta
    for m in range(len(x)):
        for h in range(height + half):
            if h < height:
                _sum_squares(x[m], h, size, columns, total)
                own, given, out, ratio = x[m, h], dy[m, h], dx[m, h], room[2 + h % size]
                for j in range(width):
                    scale = k + alpha * total[j]
                    root = np.sqrt(scale)
                    out[j] = given[j] / (root * np.sqrt(root))
                    ratio[j] = out[j] * own[j] / scale
            done = h - half  # the row whose ratios are all there
            if done >= 0:
                inner[:] = 0
                for near in range(max(done - half, 0), min(h + 1, height)):
                    ratio = room[2 + near % size]
                    for j in range(width):
                        inner[j] += ratio[j]
                _add_neighbours(columns, total, size)
                value, result = x[m, done], dx[m, done]
                for j in range(width):
                    result[j] -= factor * value[j] * total[j]


@loop("T[:,::1], int64, int64, T[::1], T[::1]")
def _sum_squares(x: Array, h: int, size: int, columns: Array, total: Array) -> None:
    """total[j] = the sum of x^2 over size x size pixels around row h and column j; columns, 0 at both ends, are overwritten."""
    inner = columns[size // 2 : size // 2 + len(total)]
    inner[:] = 0
    for near in range(max(h - size // 2, 0), min(h + size // 2 + 1, len(x))):
        row = x[near]
        for j in range(len(inner)):
            inner[j] += row[j] * row[j]
    _add_neighbours(columns, total, size)


@loop("T[::1], T[::1], int64")
def _add_neighbours(columns: Array, total: Array, size: int) -> None:
    """total[j] = the sum of columns[j] to columns[j + size - 1]."""
    total[:] = 0
    for i in range(size):
        row = columns[i:]
        for j in range(len(total)):
            total[j] += row[j]


class LRN(Layer):
    """y = x * scale^-beta, scale growing with the energy of the channels, or pixels, around.

    bottom: x (N, C, H, W). top: y of the same shape.
    Raises LayerError when local_size is even, or the bottom lacks 4 axes.
    """

    type = "LRN"
    num_bottom = 1
    num_top = 1
    keeps_places = True
    param_block = ("lrn_param",)
    weight_names = ()
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.lrn_param
        if param.local_size % 2 == 0:
            raise self.error(f"local_size must be odd, got {param.local_size}", "lrn_param.local_size")
        within = param.norm_region == WITHIN_CHANNEL
        self.axes = (1, 2) if within else (0,)  # of a block
        # Caffe's WITHIN_CHANNEL ends in a Power layer whose shift is always 1
        self.size, self.beta, self.k = param.local_size, param.beta, 1.0 if within else param.k
        self.alpha = param.alpha / param.local_size ** len(self.axes)
        self._ratio = Blob((0,), self.dtype)  # on the GPU: what backward adds up
        if self.beta == 0.75 and self.size <= LONGEST_SUM:
            self.loops = (
                ((normalise_within,), (normalise_within_backward,)) if within else ((normalise,), (normalise_backward,))
            )

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) != 4:
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {bottom[0].shape}", "bottom[0]")
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.loops[0] and loops.compiled():
            self._by_loop(self.loops[0][0], (bottom[0].data,), top[0].data)
        else:
            self._each(self._forward, bottom[0].data, top[0].data)

    def _forward(self, scratch: Scratch, x: Array, y: Array) -> None:
        scale = self._scale(x, scratch)
        np.divide(x, powered(scale, self.beta, scratch), out=y)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("lrn.lrn", count, count, *self._neighbours(top[0]), self.alpha, self.beta, self.k, x, y)

    def _neighbours(self, x: Blob) -> tuple[int, ...]:
        """Length and stride of the one or two axes that sums go over, and how far they reach."""
        _, c, h, w = x.shape
        # the second axis of one element adds nothing across channels
        return (*((h, w, w, 1) if len(self.axes) == 2 else (c, h * w, 1, 1)), self.size // 2)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0] and self.loops[1] and loops.compiled():
            self._by_loop(self.loops[1][0], (bottom[0].data, top[0].diff), bottom[0].diff)
        elif propagate_down[0]:
            self._each(self._backward, bottom[0].data, top[0].diff, bottom[0].diff)

    def _backward(self, scratch: Scratch, x: Array, dy: Array, dx: Array) -> None:
        scale = self._scale(x, scratch)
        direct = powered(scale, self.beta, scratch)
        np.divide(dy, direct, out=direct)  # dy scale^-beta: through x in the numerator
        # x_j is in the scale of its neighbours: 2 alpha beta x_j * sum over them of dy x scale^(-beta - 1)
        ratio = np.divide(x, scale, out=scale)
        ratio *= direct
        around = neighbour_sum(ratio, self.axes, self.size, scratch)
        around *= x
        around *= 2 * self.alpha * self.beta
        np.subtract(direct, around, out=dx)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        count, around = top[0].count, self._neighbours(top[0])
        self._ratio.reshape(top[0].shape)
        x, dy, dx = bottom[0].device_data("read"), top[0].device_diff("read"), bottom[0].device_diff("write")
        ratio = self._ratio.device_data("write")
        self.launch("lrn.lrn_ratio", count, count, *around, self.alpha, self.beta, self.k, x, dy, dx, ratio)
        self.launch("lrn.lrn_subtract", count, count, *around, 2 * self.alpha * self.beta, x, ratio, dx)

    def _scale(self, x: Array, scratch: Scratch) -> Array:
        """k + alpha * sum of x^2 over the neighbours; alpha with the division by their number in it."""
        scale = neighbour_sum(x, self.axes, self.size, scratch, np.square)
        scale *= self.alpha
        scale += self.k
        return scale

    def _by_loop(self, step: Loop[...], given: Sequence[Array], out: Array) -> None:
        """A loop for all strips of all images, or all maps, on all threads."""
        n, c, h, w = out.shape
        constants = self.dtype.type(self.alpha), self.dtype.type(self.k)

        def some_maps(part: slice) -> None:
            *mine, to = (array.reshape(n * c, h, w)[part] for array in (*given, out))
            room = np.empty((self.size + 2, w + self.size - 1), self.dtype)
            step(tuple(mine) if len(mine) > 1 else mine[0], self.size, constants, to, room)

        if len(self.axes) == 2:
            run(partial(some_maps, part) for part in parts(n * c, -(-BLOCK // max(1, h * w)), each=2))
            return
        *inputs, to = (array.reshape(n, c, h * w) for array in (*given, out))
        strips = [(image, (i, min(i + STRIP, h * w))) for image in range(n) for i in range(0, h * w, STRIP)]

        def task(part: slice) -> None:
            room = np.empty((c + 1, STRIP), self.dtype)
            for image, pixels in strips[part]:
                mine = tuple(array[image] for array in inputs)
                step(mine if len(mine) > 1 else mine[0], pixels, self.size, constants, to[image], room)

        run(partial(task, part) for part in parts(len(strips), -(-BLOCK // max(1, c * STRIP)), each=2))

    def _each(self, step: Callable[..., None], *arrays: Array) -> None:
        """step(scratch, *views) for all parts, on all threads."""
        todo = self._parts(*arrays)

        def task(part: slice) -> None:
            scratch = Scratch(self.dtype)
            for views in todo[part]:
                step(scratch, *views)

        run(partial(task, part) for part in parts(len(todo)))

    def _parts(self, *arrays: Array) -> list[tuple[Array, ...]]:
        """Views of arrays (N, C, H, W) that hold whole neighbourhoods and stay in cache with what is made of them:
        some maps each (maps, H, W) within a channel, some pixels of every map (C, pixels) of an image across channels."""
        n, c, h, w = arrays[0].shape
        if len(self.axes) == 2:
            # a neighbourhood spans the map: never cut one
            step, maps = max(BLOCK // max(h * w, 1), 1), [x.reshape(n * c, h, w) for x in arrays]
            return [tuple(x[start : start + step] for x in maps) for start in range(0, n * c, step)]
        # it spans the channels, and no pixel beside
        step, flat = max(BLOCK // max(c, 1), SHORTEST_RUN), [x.reshape(n, c, h * w) for x in arrays]
        starts = range(0, h * w, step)
        return [tuple(x[image, :, start : start + step] for x in flat) for image in range(n) for start in starts]


def neighbour_sum(x: Array, axes: Sequence[int], size: int, scratch: Scratch, function: np.ufunc = np.positive) -> Array:
    """The sum of function(x) over `size` (odd) places around each on the given axes, 0 past the ends; the scratch's."""
    for axis in axes:
        source = np.moveaxis(x, axis, 0)
        half = min(size // 2, max(len(source) - 1, 0))  # further away there is nothing
        padded = scratch("padded", len(source) + 2 * half, *source.shape[1:])
        padded[:half] = padded[half + len(source) :] = 0
        function(source, out=padded[half : half + len(source)])
        # squared once, on the first axis; `padded` is free again
        x, function = np.moveaxis(window_sum(padded, 2 * half + 1, scratch), 0, axis), np.positive
    return x


def window_sum(x: Array, size: int, scratch: Scratch) -> Array:
    """The sums of `size` (odd) places that follow one another on axis 0: (L + size - 1, ...) -> (L, ...), the scratch's.

    windows: the sums over 1, 2, 4, ... places; the size's binary digits say which of them to add up.
    """
    length, windows, width, done = len(x) - size + 1, x, 1, 1  # size is odd: x itself is the first summand
    total, out = x[:length], scratch("total", length, *x.shape[1:])
    while 2 * width <= size:
        next_windows = scratch(f"windows {width}", len(windows) - width, *x.shape[1:])
        windows = np.add(windows[:-width], windows[width:], out=next_windows)
        width *= 2
        if size & width:
            total = np.add(total, windows[done : done + length], out=out)  # done: how many places of each window are in total
            done += width
    if size == 1:  # the loop has not run: total is still x
        out[...] = total
    return out


def powered(scale: Array, beta: float, scratch: Scratch) -> Array:
    """scale^beta, the scratch's; by square roots for beta 0.75, which is what nets have and several times as fast as a
    power."""
    power = scratch("power", *scale.shape)
    if beta != 0.75:
        np.power(scale, scale.dtype.type(beta), out=power)
        return power
    root = np.sqrt(scale, out=scratch("root", *scale.shape))  # s^0.75 = s^0.5 * s^0.25
    np.sqrt(root, out=power)
    power *= root
    return power
