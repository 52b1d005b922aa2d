"""Random Pooling layers beside plain loops and PyTorch: python tests/fuzz/pooling_sweep.py [--cases N] [--seed S]

Each case is a MAX, AVE or AVE_EXC_PAD layer with sizes of its own on each axis, strides past the map included. Its shape,
values, mask and gradient must be those of Caffe's rules in plain loops (equal; gradients, whose sums have another order, within
rounding), and of torch's functions where torch is installed and has the same windows.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from layer_case import LayerCase

LOWEST = -float(np.finfo(np.float32).max)

Pair = tuple[int, int]
Arrays = list[NDArray[Any]]


class Pool(NamedTuple):
    """A Pooling layer and its map's size; sizes are (rows, columns)."""

    mean: bool
    size: Pair
    kernel: Pair
    stride: Pair
    pad: Pair
    floor: bool
    dtype: str
    counts_padding: bool = True

    def text(self) -> str:
        """The layer's text."""
        sizes = {"kernel": self.kernel, "stride": self.stride, "pad": self.pad}
        words = " ".join(f"{name}_h: {h} {name}_w: {w}" for name, (h, w) in sizes.items())
        kind = ("AVE" if self.counts_padding else "AVE_EXC_PAD") if self.mean else "MAX"
        rounding = "FLOOR" if self.floor else "CEIL"
        return f'type: "Pooling" pooling_param {{ pool: {kind} {words} round_mode: {rounding} }}'

    def pooled(self) -> Pair:
        """How many windows there are: Caffe's Reshape."""
        ph, pw = (
            ((size + 2 * pad - kernel) // stride if self.floor else -((kernel - size - 2 * pad) // stride)) + 1
            for size, kernel, stride, pad in zip(self.size, self.kernel, self.stride, self.pad)
        )
        if self.pad[0] or self.pad[1]:
            if (ph - 1) * self.stride[0] >= self.size[0] + self.pad[0]:
                ph -= 1
            if (pw - 1) * self.stride[1] >= self.size[1] + self.pad[1]:
                pw -= 1
        return ph, pw


def random_pools(count: int, seed: int) -> Iterator[Pool]:
    """Layers that have a window."""
    draw = random.Random(seed)

    def pair(low: int, high: int) -> Pair:
        return draw.randint(low, high), draw.randint(low, high)

    while count:
        kernel = pair(1, 5)
        pad = (draw.randrange(kernel[0]), draw.randrange(kernel[1]))
        pad = draw.choice([pad, (0, 0), (pad[0], 0), (0, pad[1])])
        stride = draw.choice([pair(1, 3), pair(1, 13)])
        mean, size, floor, dtype = draw.random() < 0.6, pair(1, 9), draw.random() < 0.2, draw.choice(["f4", "f8"])
        pool = Pool(mean, size, kernel, stride, pad, floor, dtype, draw.random() < 0.6)
        if min(pool.pooled()) > 0:
            count -= 1
            yield pool


def by_loops(pool: Pool, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Caffe's loops (Synopsys' where padding does not count) over x (N, C, H, W): y (N, C, PH, PW), the mask of the maxima,
    each window's size as the mean counts it."""
    n, c, h, w = x.shape
    ph, pw = pool.pooled()
    y = np.full((n, c, ph, pw), 0 if pool.mean else LOWEST, x.dtype)
    mask, sizes = np.full(y.shape, -1), np.zeros((ph, pw), x.dtype)
    for i, j in product(range(ph), range(pw)):
        top, left = i * pool.stride[0] - pool.pad[0], j * pool.stride[1] - pool.pad[1]
        bottom, right = min(top + pool.kernel[0], h + pool.pad[0]), min(left + pool.kernel[1], w + pool.pad[1])
        if not pool.counts_padding:
            top, left, bottom, right = max(top, 0), max(left, 0), min(bottom, h), min(right, w)
        sizes[i, j] = (bottom - top) * (right - left)
        for a, b in product(range(n), range(c)):
            for row, column in product(range(max(top, 0), min(bottom, h)), range(max(left, 0), min(right, w))):
                value = x[a, b, row, column]
                if pool.mean:
                    y[a, b, i, j] += value
                elif value > y[a, b, i, j]:
                    y[a, b, i, j], mask[a, b, i, j] = value, row * w + column
    if pool.mean:
        with np.errstate(divide="ignore", invalid="ignore"):  # an empty window, as in Caffe
            y /= sizes
    return y, mask, sizes


def gradient_by_loops(pool: Pool, x: NDArray[Any], dy: NDArray[Any]) -> NDArray[Any]:
    """dx (N, C, H, W) from dy (N, C, PH, PW)."""
    _, mask, sizes = by_loops(pool, x)
    h, w = x.shape[2:]
    dx = np.zeros_like(x)
    for a, b, i, j in np.ndindex(dy.shape):
        top, left = i * pool.stride[0] - pool.pad[0], j * pool.stride[1] - pool.pad[1]
        if not pool.mean:
            if mask[a, b, i, j] >= 0:
                dx[a, b].reshape(-1)[mask[a, b, i, j]] += dy[a, b, i, j]
            continue
        for row in range(max(top, 0), min(top + pool.kernel[0], h)):
            for column in range(max(left, 0), min(left + pool.kernel[1], w)):
                dx[a, b, row, column] += dy[a, b, i, j] / sizes[i, j]
    return dx


def by_torch(pool: Pool, x: NDArray[Any], dy: NDArray[Any]) -> Arrays | None:
    """y and dx of torch's pooling, None where it lacks these windows."""
    import torch
    from torch.nn import functional

    if any(2 * pad > kernel for pad, kernel in zip(pool.pad, pool.kernel)):
        return None
    tensor = torch.tensor(x, requires_grad=True)
    mean = partial(functional.avg_pool2d, count_include_pad=pool.counts_padding)
    function: Any = mean if pool.mean else functional.max_pool2d
    try:
        y = function(tensor, pool.kernel, pool.stride, pool.pad, ceil_mode=not pool.floor)
    except RuntimeError:  # Calculated output size: too small
        return None
    if tuple(y.shape) != dy.shape:
        return None
    y.backward(torch.from_numpy(dy))
    assert tensor.grad is not None
    return [y.detach().numpy(), tensor.grad.numpy()]


def check(pool: Pool, torch: bool) -> bool:
    """Raises AssertionError where the layer differs from the loops, or from torch; whether torch had these windows too."""
    random_values = np.random.default_rng(sum(pool.size) + 10 * sum(pool.kernel))
    x = random_values.integers(-4, 5, (2, 2, *pool.size)).astype(pool.dtype)  # ties; sums are exact
    dy = random_values.normal(size=(2, 2, *pool.pooled())).astype(pool.dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if pool.dtype == "f4" else {"rtol": 1e-12, "atol": 1e-12}
    y, mask, _ = by_loops(pool, x)
    case = LayerCase(pool.text(), x, tops=1 if pool.mean else 2, dtype=np.dtype(pool.dtype))
    for have, expected in zip(case.forward(), (y,) if pool.mean else (y, mask), strict=True):
        np.testing.assert_array_equal(have, expected, err_msg=str(pool))
    dx = case.backward(dy)[0]
    np.testing.assert_allclose(dx, gradient_by_loops(pool, x, dy), err_msg=str(pool), **tolerance)
    theirs = by_torch(pool, x, dy) if torch else None
    for have, expected in zip((y, dx), theirs or ()):
        np.testing.assert_allclose(have, expected, err_msg=str(pool), **tolerance)
    return theirs is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch = importlib.util.find_spec("torch") is not None
    beside = sum(check(pool, torch) for pool in random_pools(options.cases, options.seed))
    print(f"{options.cases} layers agree with loops, {beside} of them also with torch")


if __name__ == "__main__":
    main()
