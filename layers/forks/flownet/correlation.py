"""Correlation: the similarity of each position of a map to the positions around it in another map.

    y[(p, o), i, j] = the mean over c and a k x k window of a[c, i s + ...] b[c, i s + ... + s2 p, j s + ... + s2 o]

for displacements p (down) and o (right) from -r to r, r = max_displacement // stride_2, s = stride_1, s2 = stride_2. Both maps
have a border of `pad` zeros; the first window begins max_displacement pixels inside. SUBTRACT: the mean of |a - b|.

Source: FlowNet's correlation_layer.cu (Dosovitskiy et al., 2015); its backward of SUBTRACT is not the gradient.
"""

# The loop computes the sum directly. In NumPy, the products of a row of a with all positions of a row of b are one matrix
# product; the displacements are a band of it.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minicaffe.blob import Array, Blob
from minicaffe.kernels import kernel
from minicaffe.layer import Costs, Layer
from minicaffe.proto import caffe_pb2
from minicaffe.threads import run

SUBTRACT = caffe_pb2.CorrelationParameter.SUBTRACT


@kernel
def add_products(a: Array, b: Array, at: tuple[int, int, int], sums: Array) -> None:
    """Add to sums (D, D, w) the products of row a (C, W) and rows b (H, C, W), displaced by each p and o.

    at: the number of the row, the first column, and the pixels from one displacement to the next.
    """
    row, first, step = at
    moves, _, wide = sums.shape
    rows = [row + step * (p - moves // 2) for p in range(moves)]
    products = a[:, first : first + wide].T @ b[rows]  # (D, x, W')
    sums += band(products, first - step * (moves // 2), step, moves).transpose(0, 2, 1)


def add_products_by_definition(a: Array, b: Array, at: tuple[int, int, int], sums: Array) -> None:
    """Add the same products, element by element."""
    row, first, step = at
    moves, _, wide = sums.shape
    for p in range(moves):
        for c in range(len(a)):
            x = a[c, first : first + wide]
            for o in range(moves):
                start = first + step * (o - moves // 2)
                y, total = b[row + step * (p - moves // 2), c, start : start + wide], sums[p, o]
                for j in range(wide):
                    total[j] += x[j] * y[j]


def band(products: Array, first: int, step: int, moves: int) -> Array:
    """Return a view (D, x, D) of products (D, x, W'): the displacements of each x, which begin at x + first."""
    rows, down, right = products.strides
    return as_strided(products[:, :, first:], (*products.shape[:2], moves), (rows, down + right, step * right))


class Correlation(Layer):
    """y[n, (p, o), i, j] = the mean over channels and window of a b, or of |a - b|, b displaced by p rows and o columns.

    bottom: a, b (N, C, H, W). top: y (N, (2 r + 1)^2, h, w), h = ceil((H + 2 pad - 2 (max_displacement + k // 2)) / stride_1).
    correlation_param: kernel_size (odd), max_displacement, pad, stride_1, stride_2, correlation_type (MULTIPLY or SUBTRACT).
    do_abs and single_direction have no effect, as in the original.
    Raises LayerError for other shapes, fields that are missing or out of range, and maps that are too small.
    """

    type = "Correlation"
    num_bottom = 2
    num_top = 1
    param_block = ("correlation_param",)
    weight_names = ()
    uses_kernels = ((add_products,), ())

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.correlation_param
        for name in ("kernel_size", "max_displacement"):
            if not param.HasField(name):
                raise self.error(f"{name} is missing", "correlation_param")
        if param.kernel_size % 2 == 0:
            raise self.error(f"kernel_size must be odd, got {param.kernel_size}", "correlation_param.kernel_size")
        for name in ("stride_1", "stride_2"):
            if not getattr(param, name):
                raise self.error(f"{name} must be at least 1", f"correlation_param.{name}")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, b, param = bottom[0].shape, bottom[1].shape, self.param.correlation_param
        if len(a) != 4 or a != b or not a[1]:
            raise self.error(f"two maps of one shape (N, C, H, W) are needed, got {a} and {b}", "bottom")
        border = param.max_displacement + param.kernel_size // 2
        room = [size + 2 * param.pad - 2 * border for size in a[2:]]
        if min(room) < 1:
            raise self.error(f"max_displacement and kernel_size leave no place of {a[2]} x {a[3]} pixels", "correlation_param")
        self.radius = param.max_displacement // param.stride_2
        self.moves = 2 * self.radius + 1
        top[0].reshape(a[0], self.moves**2, *(-(-size // param.stride_1) for size in room))

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(multiply_adds=top[0].count * bottom[0].shape[1] * self.param.correlation_param.kernel_size**2)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        y = top[0].data.reshape(top[0].shape[0], self.moves, self.moves, *top[0].shape[2:])
        for (a, b), out in zip(self._rows(bottom), y):
            run(partial(self._row, a, b, i, out[:, :, i]) for i in range(out.shape[2]))

    def _row(self, a: Array, b: Array, i: int, out: Array) -> None:
        """Compute row i of an image's y (D, D, w). a, b: its rows (H', C, W')."""
        param = self.param.correlation_param
        size, step = param.kernel_size, param.stride_1
        sums = np.zeros((self.moves, self.moves, self._wide(out.shape[2])), self.dtype)
        for row in self._window(i):
            if param.correlation_type == SUBTRACT:
                for p, other in enumerate(self._others(row)):
                    for o, moved in enumerate(self._moved(b[other], sums.shape[2])):
                        sums[p, o] += np.abs(self._start(a[row], sums.shape[2]) - moved).sum(axis=0)
            else:
                add_products(a[row], b, (row, param.max_displacement, param.stride_2), sums)
        spans = [sums[:, :, k : k + step * (out.shape[2] - 1) + 1 : step] for k in range(size)]
        np.divide(sum(spans[1:], spans[0]), size**2 * a.shape[1], out=out)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = top[0].diff.reshape(top[0].shape[0], self.moves, self.moves, *top[0].shape[2:])
        diffs = [blob.diff if wanted else None for blob, wanted in zip(bottom, propagate_down, strict=True)]
        run(partial(self._image_backward, n, *rows, dy[n], diffs) for n, rows in enumerate(self._rows(bottom)))

    def _image_backward(self, n: int, a: Array, b: Array, dy: Array, diffs: Sequence[Array | None]) -> None:
        """Compute the wanted diffs of image n. a, b: its rows (H', C, W'); dy (D, D, h, w)."""
        param = self.param.correlation_param
        size, step, wide = param.kernel_size, param.stride_1, self._wide(dy.shape[3])
        da, db = np.zeros_like(a), np.zeros_like(b)
        bands = np.zeros((self.moves, wide, a.shape[2]), self.dtype)
        for i in range(dy.shape[2]):
            given = np.zeros((self.moves, self.moves, wide), self.dtype)
            for k in range(size):
                given[:, :, k : k + step * (dy.shape[3] - 1) + 1 : step] += dy[:, :, i]
            given /= size**2 * a.shape[1]
            for row in self._window(i):
                others, start = self._others(row), self._start(a[row], wide)
                to = self._start(da[row], wide)
                if param.correlation_type == SUBTRACT:
                    for p, other in enumerate(others):
                        for o, (moved, moved_to) in enumerate(zip(self._moved(b[other], wide), self._moved(db[other], wide))):
                            slope = np.sign(start - moved) * given[p, o]
                            to += slope
                            np.subtract(moved_to, slope, out=moved_to)
                    continue
                first = param.max_displacement - param.stride_2 * self.radius
                band(bands, first, param.stride_2, self.moves)[...] = given.transpose(0, 2, 1)
                to += np.einsum("pxc->cx", bands @ b[others].transpose(0, 2, 1))
                db[others] += start @ bands
        for diff, of_rows in zip(diffs, (da, db), strict=True):
            if diff is not None:
                height, width = diff.shape[2:]
                diff[n] = of_rows[param.pad : param.pad + height, :, param.pad : param.pad + width].transpose(1, 0, 2)

    def _rows(self, bottom: Sequence[Blob]) -> Iterator[tuple[Array, Array]]:
        """Yield for each image the rows (H + 2 pad, C, W + 2 pad) of a and b."""
        pad = self.param.correlation_param.pad
        around = (pad, pad), (0, 0), (pad, pad)
        for a, b in zip(bottom[0].data, bottom[1].data):
            yield np.pad(a.transpose(1, 0, 2), around), np.pad(b.transpose(1, 0, 2), around)

    def _window(self, i: int) -> range:
        """Return the rows of a in the windows of row i of y."""
        param = self.param.correlation_param
        first = param.max_displacement + param.stride_1 * i
        return range(first, first + param.kernel_size)

    def _others(self, row: int) -> list[int]:
        """Return the rows of b that correspond to a row of a."""
        step = self.param.correlation_param.stride_2
        return [row + step * p for p in range(-self.radius, self.radius + 1)]

    def _wide(self, width: int) -> int:
        """Return how many pixels of a row of a `width` windows cover."""
        param = self.param.correlation_param
        return param.stride_1 * (width - 1) + param.kernel_size

    def _start(self, row: Array, wide: int) -> Array:
        """Return the pixels (C, wide) that the windows cover, a view."""
        first = self.param.correlation_param.max_displacement
        return row[:, first : first + wide]

    def _moved(self, row: Array, wide: int) -> Iterator[Array]:
        """Yield the pixels (C, wide) of a row of b for each displacement, as views."""
        param = self.param.correlation_param
        for o in range(-self.radius, self.radius + 1):
            first = param.max_displacement + param.stride_2 * o
            yield row[:, first : first + wide]
