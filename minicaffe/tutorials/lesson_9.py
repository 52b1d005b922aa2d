"""Questions of lesson 9: an engine of your own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe import detection, ops
from minicaffe.data.boxes import bbox_transform_inv, clip_boxes
from minicaffe.data.images import load_image
from minicaffe.detection.detect import score_boxes
from minicaffe.detection.detector import Detector
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.layers.proposal.anchors import by_position
from minicaffe.layers.roi.psroi_pooling import PsRoiPool
from minicaffe.mode import TRAIN
from minicaffe.net import Net
from minicaffe.training.solver import SGDSolver

from .checks import question
from .lesson_4 import kept_boxes

Array = NDArray[Any]
Generator = np.random.Generator
Results = list[Array]


def _input(name: str, array: ArrayLike) -> str:
    dims = " ".join(f"dim: {side}" for side in np.shape(array))
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'


def _passes(layer: str, bottoms: Sequence[Array], weights: Sequence[Array] = (), dy: ArrayLike | None = None) -> Results:
    """Return a layer's top, and after its backward from dy the gradients of the first bottom and of the weights."""
    names = [f"x{i}" for i in range(len(bottoms))]
    text = "".join(map(_input, names, bottoms)) + "".join(f' bottom: "{name}"' for name in names).join(
        ['layer { name: "layer" top: "y" loss_weight: 0', f" {layer} }}"]
    )
    net = Net(parse_net(f"force_backward: true {text}"), TRAIN)
    for blob, array in zip(net.params.get("layer", []), weights, strict=True):
        blob.data[...] = array
    for name, array in zip(names, bottoms, strict=True):
        net.blobs[name].data[...] = array
    found = [net.forward()["y"].copy()]
    if dy is not None:
        net.blobs["y"].diff[...] = dy
        net.layers[-1].backward_pass([net.blobs["y"]], [True] + [False] * (len(bottoms) - 1), [net.blobs[n] for n in names])
        found += [net.blobs["x0"].diff.copy(), *(blob.diff.copy() for blob in net.params.get("layer", []))]
    return found


def _normal(rng: Generator, *shape: int) -> Array:
    return rng.normal(size=shape).astype(np.float32)


# 1. Columns.

WINDOWS = ((2, 1, 0, 1), (3, 1, 1, 1), (3, 2, 1, 1), (2, 1, 2, 2), (3, 1, 2, 2))
"""kernel, stride, pad, dilation."""


def _window(kernel: int, stride: int, pad: int, dilation: int) -> str:
    return f"convolution_param {{ kernel_size: {kernel} stride: {stride} pad: {pad} dilation: {dilation} "


def _column_cases(rng: Generator) -> list[tuple[Any, ...]]:
    return [(_normal(rng, 1 + k % 2, 2, 6, 7), *window) for k, window in enumerate(WINDOWS)]


@question(_column_cases)
def columns(x: Array, kernel: int, stride: int = 1, pad: int = 0, dilation: int = 1) -> Array:
    """Return the windows of x (N, C, H, W) as columns (N, C * kernel * kernel, OH, OW)."""
    return _columns(x, kernel, stride, pad, dilation)


def _columns(x: Array, *window: int) -> Array:
    return _passes(f'type: "Im2col" {_window(*window)} }}', [x])[0]


@columns.slip("Outside the map there are zeros, but yours repeats the pixels at the edge: np.pad without a mode pads with 0.")
def pads_with_the_edge(x: Array, kernel: int, stride: int, pad: int, dilation: int) -> Array:
    padded = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)], mode="edge")
    return _columns(padded, kernel, stride, 0, dilation)


@columns.slip("A column goes channel by channel: all taps of channel 0, then those of channel 1. Yours goes tap by tap.")
def taps_outermost(x: Array, kernel: int, stride: int, pad: int, dilation: int) -> Array:
    found = _columns(x, kernel, stride, pad, dilation)
    n, _, *size = found.shape
    turned: Array = found.reshape(n, x.shape[1], kernel**2, *size).swapaxes(1, 2)
    return turned.reshape(found.shape)


@columns.slip(
    "The taps of a dilated window are `dilation` pixels apart, so that it reaches dilation * (kernel - 1) + 1 pixels."
)
def without_dilation(x: Array, kernel: int, stride: int, pad: int, dilation: int) -> Array:
    return _columns(x, kernel, stride, pad, 1)


@columns.slip(
    "The taps of a dilated window are `dilation` pixels apart. The number of windows is right, but their taps are neighbours."
)
def neighbouring_taps(x: Array, kernel: int, stride: int, pad: int, dilation: int) -> Array:
    rows, across = _columns(x, kernel, stride, pad, dilation).shape[2:]
    return _columns(x, kernel, stride, pad, 1)[:, :, :rows, :across]


@columns.slip("Within a channel a column goes row by row of the window. Yours goes column by column.")
def taps_column_by_column(x: Array, kernel: int, stride: int, pad: int, dilation: int) -> Array:
    found = _columns(x, kernel, stride, pad, dilation)
    n, _, *size = found.shape
    turned: Array = found.reshape(n, x.shape[1], kernel, kernel, *size).swapaxes(2, 3)
    return turned.reshape(found.shape)


# 2. Convolution.


def _convolution_cases(rng: Generator) -> Iterator[tuple[Any, ...]]:
    """Yield a case for each window, and one without a bias, as convolutions before a BatchNorm are."""
    for kernel, stride, pad, dilation in WINDOWS:
        x, weight = _normal(rng, 2, 2, 6, 7), _normal(rng, 3, 2, kernel, kernel)
        rows, across = ((side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for side in x.shape[2:])
        yield x, weight, _normal(rng, 3), stride, pad, dilation, _normal(rng, 2, 3, rows, across)
    yield x, weight, None, stride, pad, dilation, _normal(rng, 2, 3, rows, across)


@question(_convolution_cases, parts=("the top", "the gradient of x", "the gradient of weight", "the gradient of bias"))
def convolution(x: Array, weight: Array, bias: Array | None, *given: Any) -> Results:
    """Return y, and the gradients of x, weight and, if there is one, bias. given: stride, pad, dilation, dy."""
    *window, dy = given
    geometry = f"{_window(weight.shape[2], *window)} num_output: {len(weight)}"
    if bias is None:
        return _passes(f'type: "Convolution" {geometry} bias_term: false }}', [x], [weight], dy)
    return _passes(f'type: "Convolution" {geometry} }}', [x], [weight, bias], dy)


HALF_A_TURN = "Yours turns the filters by half a turn. Caffe's convolution lays them on the window as they are."


@convolution.slip(HALF_A_TURN)
def flipped(x: Array, weight: Array, *rest: Any) -> Results:
    y, dx, dw, *db = convolution.answer(x, weight[..., ::-1, ::-1], *rest)
    return [y, dx, dw[..., ::-1, ::-1], *db]


@convolution.slip(HALF_A_TURN)
def flipped_in_forward_alone(x: Array, weight: Array, *rest: Any) -> Results:
    return [flipped(x, weight, *rest)[0], *convolution.answer(x, weight, *rest)[1:]]


@convolution.slip("Windows overlap. A pixel gets the sum of what all its windows send back; yours keeps the last one's alone.")
def overwritten(x: Array, weight: Array, bias: Array | None, *given: Any) -> Results:
    y, _, *weights = convolution.answer(x, weight, bias, *given)
    *window, dy = given
    taps = np.einsum("fcij,nfhw->ncijhw", weight, dy)
    return [y, _put_back(taps, x.shape, *window), *weights]


def _put_back(taps: Array, shape: tuple[int, ...], stride: int, pad: int, dilation: int = 1) -> Array:
    """Return x of this shape, with each tap (N, C, K, K, OH, OW) written, not added, to its pixel."""
    rows, across = taps.shape[4:]
    reach = dilation * (taps.shape[2] - 1) + 1
    sides = [max(side + 2 * pad, (n - 1) * stride + reach) for side, n in zip(shape[2:], (rows, across), strict=True)]
    x = np.zeros((*shape[:2], *sides), taps.dtype)
    for i, j in np.ndindex(taps.shape[2:4]):
        there = x[:, :, i * dilation :: stride, j * dilation :: stride]
        there[:, :, :rows, :across] = taps[:, :, i, j]
    return x[:, :, pad : pad + shape[2], pad : pad + shape[3]]


@convolution.slip("The gradients of the weights are sums over all images of the batch; yours are those of the last image.")
def last_image(x: Array, *rest: Any) -> Results:
    y, dx, *_ = convolution.answer(x, *rest)
    _, _, *weights = convolution.answer(x[-1:], *rest[:-1], rest[-1][-1:])
    return [y, dx, *weights]


@convolution.slip("Backward adds to the diffs of its weights: blob.diff += gradient. Yours overwrites what a diff had before.")
def overwritten_diffs(*case: Any) -> Results:
    y, dx, *weights = convolution.answer(*case)
    return [y, dx, *(gradient - 1 for gradient in weights)]  # the notebook's `passes` starts a diff at 1


# 3. Max pooling.


def _pool_cases(rng: Generator) -> Iterator[tuple[Any, ...]]:
    """Yield maps of small whole numbers, so that a window has several equal maxima."""
    for height, width, kernel, stride in ((4, 6, 2, 2), (6, 7, 3, 2), (5, 8, 2, 2), (5, 7, 3, 1)):
        rows, across = (-(-(side - kernel) // stride) + 1 for side in (height, width))
        yield rng.integers(-2, 3, (2, 3, height, width)).astype(np.float32), kernel, stride, _normal(rng, 2, 3, rows, across)


def _pool(kernel: int, stride: int, how: str = "") -> str:
    return f'type: "Pooling" pooling_param {{ pool: MAX kernel_size: {kernel} stride: {stride} {how} }}'


@question(_pool_cases, parts=("the top", "the gradient of x"))
def max_pool(x: Array, kernel: int, stride: int, dy: Array) -> Results:
    """Return y and the gradient of x."""
    return _passes(_pool(kernel, stride), [x], dy=dy)


@max_pool.slip(
    "Caffe rounds the number of windows up: ceil((size - kernel) / stride) + 1. The last window may hang over the end."
)
def rounded_down(x: Array, kernel: int, stride: int, dy: Array) -> Results:
    y = _passes(_pool(kernel, stride, "round_mode: FLOOR"), [x])[0]
    return max_pool.answer(x, kernel, stride, dy) if y.shape == dy.shape else [y]


def _taps(x: Array, kernel: int, stride: int, size: tuple[int, ...], past: float = -np.inf) -> Array:
    """Return each window's pixels (N, C, K, K, OH, OW); past the end this number."""
    over = [(0, max((count - 1) * stride + kernel - side, 0)) for count, side in zip(size, x.shape[2:], strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *over], constant_values=past)
    views = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3)).transpose(0, 1, 4, 5, 2, 3)
    taps: Array = views[..., ::stride, ::stride]
    return taps


@max_pool.slip("Of equal maxima in a window, the first alone gets the gradient (argmax); yours gives it to each of them.")
def all_maxima(x: Array, kernel: int, stride: int, dy: Array) -> Results:
    y = max_pool.answer(x, kernel, stride, dy)[0]
    taps, dx = _taps(x, kernel, stride, dy.shape[2:]), np.zeros_like(x)
    for i, j, h, w in np.ndindex(taps.shape[2:]):
        if h * stride + i < x.shape[2] and w * stride + j < x.shape[3]:
            dx[:, :, h * stride + i, w * stride + j] += dy[:, :, h, w] * (taps[:, :, i, j, h, w] == y[:, :, h, w])
    return [y, dx]


@max_pool.slip("A pixel can be the maximum of several windows. It gets the sum of their gradients; yours keeps the last one's.")
def last_window(x: Array, kernel: int, stride: int, dy: Array) -> Results:
    taps, dx = _taps(x, kernel, stride, dy.shape[2:]), np.zeros_like(x)
    best = taps.reshape(*x.shape[:2], -1, *dy.shape[2:]).argmax(axis=2)
    for n, c, h, w in np.ndindex(dy.shape):
        i, j = divmod(int(best[n, c, h, w]), kernel)
        dx[n, c, h * stride + i, w * stride + j] = dy[n, c, h, w]
    return [max_pool.answer(x, kernel, stride, dy)[0], dx]


@max_pool.slip("Past the end there are no pixels. Fill with -np.inf: if all pixels of a window are negative, 0 would win.")
def zeros_past_the_end(x: Array, kernel: int, stride: int, dy: Array) -> Results:
    taps = _taps(x, kernel, stride, dy.shape[2:], past=0)
    taps = taps.reshape(*x.shape[:2], -1, *dy.shape[2:])
    best, dx = taps.argmax(axis=2), np.zeros_like(x)
    for n, c, h, w in np.ndindex(dy.shape):
        i, j = divmod(int(best[n, c, h, w]), kernel)
        if h * stride + i < x.shape[2] and w * stride + j < x.shape[3]:
            dx[n, c, h * stride + i, w * stride + j] += dy[n, c, h, w]
    return [taps.max(axis=2), dx]


# 4. Softmax with its loss.

DY = 2
"""The gradient of a loss that backward is given: not 1, so that an answer that leaves it out differs."""


def _loss_cases(rng: Generator) -> list[tuple[Any, ...]]:
    large = np.array([[1000, 3, 0], [2, 1, -1]], np.float32)
    rows, maps = (3 * _normal(rng, 5, 4), rng.integers(0, 4, 5)), (_normal(rng, 2, 3, 4, 5), rng.integers(0, 3, (2, 4, 5)))
    return [rows, maps, (large, np.array([0, 2]))]


@question(_loss_cases, parts=("the loss", "the gradient of scores"))
def softmax_loss(scores: Array, labels: Array) -> Results:
    """Return the loss and the gradient of the scores."""
    return _passes('type: "SoftmaxWithLoss"', [scores, labels], dy=DY)


def _log_loss(scores: Array, labels: Array, shift: bool = True, wanted: float = 1, dy: float = 1) -> Results:
    with np.errstate(all="ignore"):
        y = np.exp(scores - scores.max(axis=1, keepdims=True) * shift)
        y /= y.sum(axis=1, keepdims=True)
        loss = -np.log(np.take_along_axis(y, labels[:, None], axis=1)).mean()
    is_label = np.arange(scores.shape[1]).reshape(-1, *[1] * (scores.ndim - 2)) == labels[:, None]
    return [loss, dy * (y - wanted * is_label) / labels.size]


@softmax_loss.slip("exp(1000) is infinite. Subtract the maximum of the scores first: the probabilities stay the same.")
def without_the_maximum(scores: Array, labels: Array) -> Results:
    return _log_loss(scores, labels, shift=False, dy=DY)


@softmax_loss.slip(
    "The gradient is the probabilities, less 1 at the label. Yours lacks the 1, so that it never lifts the label."
)
def without_the_label(scores: Array, labels: Array) -> Results:
    return _log_loss(scores, labels, wanted=0, dy=DY)


@softmax_loss.slip("The loss is the mean over all labels, and its gradient is divided by their number too; yours are sums.")
def sum_of_losses(scores: Array, labels: Array) -> Results:
    return [found * labels.size for found in _log_loss(scores, labels, dy=DY)]


NO_DY = "Backward is given dy, the gradient of the loss: multiply by it. Yours gives the same gradient for every dy."


@softmax_loss.slip(NO_DY)
def log_loss_without_dy(scores: Array, labels: Array) -> Results:
    return _log_loss(scores, labels)


# 5. Smooth L1.


def _smooth_cases(rng: Generator) -> Iterator[tuple[Any, ...]]:
    for sigma in (1.0, 3.0):
        shape = (4, 8, 2, 3)
        inside, outside = rng.integers(0, 2, shape) * np.float32(0.5), rng.random(shape).astype(np.float32)
        yield _normal(rng, *shape), _normal(rng, *shape), inside, outside, sigma


@question(_smooth_cases, parts=("the loss", "the gradient of x"))
def smooth_l1(x: Array, target: Array, inside: Array, outside: Array, sigma: float) -> Results:
    """Return the loss and the gradient of x."""
    layer = f'type: "SmoothL1Loss" smooth_l1_loss_param {{ sigma: {sigma} }}'
    return _passes(layer, [x, target, inside, outside], dy=DY)


def _smooth(*case: Any, bend: float | None = None, weigh: bool = True, dy: float = 1) -> Results:
    """Return the loss and the gradient of x. bend: where the parabola ends; weigh: by inside in the gradient too."""
    x, target, inside, outside, sigma = case
    d = inside * (x - target)
    bend = 1 / sigma**2 if bend is None else bend
    near = abs(d) < bend
    loss = outside * np.where(near, 0.5 * sigma**2 * d**2, abs(d) - 0.5 / sigma**2)
    slope = np.where(near, sigma**2 * d, np.sign(d))
    return [loss.sum() / len(x), dy * slope * outside * (inside if weigh else 1) / len(x)]


@smooth_l1.slip("The parabola ends at 1 / sigma^2, where its slope is 1. Yours ends at 1 whatever sigma is.")
def bend_at_one(*arrays: Any) -> Results:
    return _smooth(*arrays, bend=1, dy=DY)


@smooth_l1.slip("sigma is squared everywhere: the parabola is 0.5 * sigma**2 * d**2 and ends at 1 / sigma**2.")
def sigma_not_squared(*arrays: Any) -> Results:
    return _smooth(*arrays[:-1], arrays[-1] ** 0.5, dy=DY)


@smooth_l1.slip("d = inside * (x - target), so the chain rule multiplies the gradient by the inside weight once more.")
def inside_weight_once(*arrays: Any) -> Results:
    return _smooth(*arrays, weigh=False, dy=DY)


@smooth_l1.slip("The sum is divided by N, the length of the first axis alone: yours is a mean over all numbers.")
def mean_of_all(x: Array, *rest: Any) -> Results:
    return [found * len(x) / x.size for found in _smooth(x, *rest, dy=DY)]


@smooth_l1.slip(NO_DY)
def smooth_without_dy(*arrays: Any) -> Results:
    return _smooth(*arrays)


# 6. Net and SGD.

STEPS = 4
HEADS = """
layer {{ name: "hidden" type: "Convolution" bottom: "x" top: "h" convolution_param {{ num_output: {} kernel_size: 1 }} }}
layer {{ name: "relu" type: "ReLU" bottom: "h" top: "h" }}
layer {{ name: "class" type: "Convolution" bottom: "h" top: "scores" convolution_param {{ num_output: {} kernel_size: 1 }} }}
layer {{ name: "box" type: "Convolution" bottom: "h" top: "deltas" convolution_param {{ num_output: {} kernel_size: 1 }} }}
layer {{ name: "class_loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "labels" top: "class_loss" }}
layer {{ name: "box_loss" type: "SmoothL1Loss" bottom: "deltas" bottom: "targets" top: "box_loss" loss_weight: 1 }}
"""


def _training_cases(rng: Generator) -> Iterator[tuple[Any, ...]]:
    for momentum, decay in ((0.0, 0.0), (0.9, 0.0), (0.9, 0.05)):
        weights = [(_normal(rng, n, c, 1, 1), _normal(rng, n)) for n, c in ((6, 3), (3, 6), (4, 6))]
        x, labels, targets = _normal(rng, 7, 3, 1, 1), rng.integers(0, 3, (7, 1, 1)), _normal(rng, 7, 4, 1, 1)
        yield x, labels, targets, weights, STEPS, 0.1, momentum, decay


@question(_training_cases, parts=("the losses", "the first layer's weights"))
def training(  # noqa: PLR0917 - the parts of a training
    x: Array,
    labels: Array,
    targets: Array,
    weights: list[tuple[Array, Array]],
    steps: int,
    rate: float,
    momentum: float,
    decay: float,
) -> Results:
    """Return the losses (steps,), and the hidden layer's weight at the end."""
    inputs = {"x": x, "labels": labels, "targets": targets}
    net = "".join(_input(name, array) for name, array in inputs.items()) + HEADS.format(*(len(bias) for _, bias in weights))
    numbers = f'base_lr: {rate} momentum: {momentum} weight_decay: {decay} lr_policy: "fixed" max_iter: {steps}'
    solver = SGDSolver(parse_solver(f"{numbers} snapshot_after_train: false net_param {{ {net} }}"))
    for name, array in inputs.items():
        solver.net.blobs[name].data[...] = array
    for blob, array in zip(solver.net.learnable_params, (array for pair in weights for array in pair), strict=True):
        blob.data[...] = array
    losses = []
    for _ in range(steps):
        solver.step(1)
        losses.append(sum(float(solver.net.blobs[name].data) for name in ("class_loss", "box_loss")))
    return [np.array(losses), solver.net.params["hidden"][0].data.copy()]


def _trained(*case: Any, heads: Sequence[float] = (1, 1), sign: float = 1, clears: bool = True, taped: bool = True) -> Results:
    """Train as `training` does.

    heads: the parts of the two heads' gradients that reach h; sign: of the momentum; taped: ReLU's bottom is not its top.
    """
    x, labels, targets, weights, steps, rate, momentum, decay = case
    x, labels, targets = x[..., 0, 0], labels[:, 0, 0], targets[..., 0, 0]
    values = [array.astype(np.float64).reshape(array.shape[:2]) for pair in weights for array in pair]
    history, sums = ([np.zeros_like(array) for array in values] for _ in range(2))
    losses = []
    for _ in range(steps):
        before = x @ values[0].T + values[1]
        h = np.maximum(before, 0)
        loss, dscores = _log_loss(h @ values[2].T + values[3], labels)
        box_loss, ddeltas = _smooth(h @ values[4].T + values[5], targets, np.float64(1), np.float64(1), 1.0)
        losses.append(loss + box_loss)
        dh = (heads[0] * dscores @ values[2] + heads[1] * ddeltas @ values[4]) * ((before > 0) + float(not taped))
        new = [dh.T @ x, dh.sum(0), dscores.T @ h, dscores.sum(0), ddeltas.T @ h, ddeltas.sum(0)]
        sums = [gradient + (0 if clears else total) for gradient, total in zip(new, sums, strict=True)]
        for k, gradient in enumerate(sums):
            history[k] = sign * momentum * history[k] + rate * (gradient + decay * values[k])
            values[k] = values[k] - history[k]
    return [np.array(losses), values[0][..., None, None]]


@training.slip("Two layers read h. Its gradient is the sum of what both send back (+=); yours keeps that of one.")
def first_head_alone(*case: Any) -> Results:
    return _trained(*case, heads=(1, 0))  # in reverse, the first of them writes last


@training.slip("The history keeps its direction: history = momentum * history + rate * gradient. Yours turns it around.")
def turned_momentum(*case: Any) -> Results:
    return _trained(*case, sign=-1)


@training.slip("Your gradients add up from step to step: set each diff to 0 after the update.")
def never_cleared(*case: Any) -> Results:
    return _trained(*case, clears=False)


@training.slip(
    "The history must last until the next step: self.history[k] = ..., or history[...] = ... in a loop. A plain history = ..."
    " names a new array, and the old one stays 0."
)
def history_not_kept(*case: Any) -> Results:
    *given, _, decay = case
    return _trained(*given, 0.0, decay)


@training.slip("Weight decay is missing: decay * data is added to diff before the rate multiplies them.")
def without_decay(*case: Any) -> Results:
    return _trained(*case[:-1], 0.0)


@training.slip(
    "ReLU reads h and writes h: these are two blobs with one name. Yours are one, so that the gradient of ReLU's top counts"
    " as its bottom's too. Make a new Blob for each top, and put the blobs, not their names, on the tape."
)
def blobs_by_name(*case: Any) -> Results:
    return _trained(*case, taped=False)


# 7. NMS.


def _nms_cases(rng: Generator) -> Iterator[tuple[Any, ...]]:
    yield np.array([[0, 0, 9, 9], [4, 0, 13, 9], [8, 0, 17, 9]], np.float32), np.array([0.9, 0.8, 0.7], np.float32), 0.4
    yield np.array([[0, 0, 9, 9], [5, 0, 14, 9]], np.float32), np.array([0.6, 0.8], np.float32), 0.3
    yield np.zeros((0, 4), np.float32), np.zeros(0, np.float32), 0.5
    for threshold in (0.3, 0.7):
        corners = rng.integers(0, 30, (40, 2))
        boxes = np.hstack([corners, corners + rng.integers(5, 25, (40, 2))]).astype(np.float32)
        yield boxes, rng.permutation(40).astype(np.float32) / 40, threshold
    halves = [[0, 0, 9, 9], [0, 0, 9, 4]]  # the second covers just half of the first
    equals = [[20 + k, 20, 29 + k, 29] for k in range(4)]  # all overlap by more than half
    yield np.array(halves + equals, np.float32), np.array([0.9, 0.8] + 4 * [0.5], np.float32), 0.5
    yield np.array([[0, 0, 1, 9], [1, 0, 2, 9], [7, 7, 9, 9]], np.float32), np.array([0.2, 0.9, 0.5], np.float32), 0.3


@question(_nms_cases)
def nms(boxes: Array, scores: Array, threshold: float) -> Array:
    """Return the indices of the kept boxes, best first."""
    return np.asarray(ops.nms(np.column_stack([boxes, scores]), threshold))


@nms.slip("Boxes must be visited from the best score to the worst; yours go in the order given.")
def not_sorted(boxes: Array, scores: Array, threshold: float) -> list[int]:
    return kept_boxes(boxes, threshold, np.arange(len(boxes)))


@nms.slip("A box that was dropped drops no others. Compare with the kept boxes alone.")
def dropped_boxes_drop(boxes: Array, scores: Array, threshold: float) -> list[int]:
    return kept_boxes(boxes, threshold, np.argsort(-scores, kind="stable"), by_all=True)


@nms.slip("The last pixel belongs to the box, so that a side is x2 - x1 + 1 pixels long.")
def without_the_end(boxes: Array, scores: Array, threshold: float) -> list[int]:
    return kept_boxes(boxes, threshold, np.argsort(-scores, kind="stable"), end=0)


@nms.slip("A box is dropped if its IoU is greater than the threshold. Yours also drops those whose IoU is just the threshold.")
def dropped_at_the_threshold(boxes: Array, scores: Array, threshold: float) -> list[int]:
    return kept_boxes(boxes, threshold, np.argsort(-scores, kind="stable"), strict=False)


@nms.slip('Of equal scores the earlier box comes first: np.argsort(-scores, kind="stable"). Yours visits the later one first.')
def later_of_equals(boxes: Array, scores: Array, threshold: float) -> list[int]:
    return kept_boxes(boxes, threshold, np.argsort(scores, kind="stable")[::-1])


# 8. Proposals.


def _proposal_cases(rng: Generator) -> Iterator[tuple[Any, ...]]:
    """Yield scores without ties, and limits that each leave something out."""
    anchors = ops.generate_anchors(16, (0.5, 1, 2), (1, 2)).astype(np.float32)
    for before, after, threshold, least, scale in ((60, 12, 0.7, 4, 1.0), (90, 40, 0.5, 8, 1.5), (9, 9, 0.7, 16, 0.75)):
        count, height, width = len(anchors), 5, 7
        scores = rng.permutation(2 * count * height * width).reshape(1, 2 * count, height, width).astype(np.float32) / 1000
        deltas, im_info = 0.3 * _normal(rng, 1, 4 * count, height, width), np.array([[40, 56, scale]], np.float32)
        yield scores, deltas, im_info, anchors, 8, before, after, threshold, least


@question(_proposal_cases, atol=1e-3)
def proposals(scores: Array, deltas: Array, im_info: Array, anchors: Array, stride: int, *limits: float) -> Array:
    """Return rois (R, 5). limits: the boxes before and after NMS, its threshold, the shortest side."""
    return _proposed(scores[:, len(anchors) :], by_position(deltas, 4), im_info, anchors, stride, limits)


def _proposed(scores: Array, deltas: Array, *given: Any, size: float = 1, swapped: bool = False) -> Array:
    """Return rois. given: im_info, anchors, stride, limits. size: a factor for the image's size, to which boxes are clipped.

    swapped: rows shift x, and columns y.
    """
    im_info, anchors, stride, (before, after, threshold, least) = given
    height, width = scores.shape[2:]
    shifted = ops.shifted_anchors(anchors, height, width, stride)
    if swapped:
        own = np.tile(anchors, (height * width, 1))
        shifted = own + (shifted - own)[:, [1, 0, 3, 2]]
    limits = ops.ProposalLimits(before, after, threshold, least)
    boxes = ops.proposals(shifted, by_position(scores, 1)[:, 0], deltas, im_info[0] * np.array([size, size, 1]), limits)[0]
    return np.hstack([np.zeros((len(boxes), 1), boxes.dtype), boxes])


@proposals.slip("deltas (1, 4A, H, W) has the four numbers of an anchor on axis 1. Transpose to (H, W, 4A) before the reshape.")
def without_transpose(scores: Array, deltas: Array, im_info: Array, anchors: Array, stride: int, *limits: float) -> Array:
    return _proposed(scores[:, len(anchors) :], deltas.reshape(-1, 4), im_info, anchors, stride, limits)


@proposals.slip("The first A channels of the scores are the background's. Those of the objects are the last A.")
def background_scores(scores: Array, deltas: Array, im_info: Array, anchors: Array, stride: int, *limits: float) -> Array:
    return _proposed(scores[:, : len(anchors)], by_position(deltas, 4), im_info, anchors, stride, limits)


@proposals.slip("Boxes must be clipped to the image before NMS: im_info has its height and width.")
def not_clipped(scores: Array, deltas: Array, im_info: Array, anchors: Array, stride: int, *limits: float) -> Array:
    shift = np.full(4, 1000 * stride, np.float32)  # far from the border on every side
    found = _proposed(scores[:, len(anchors) :], by_position(deltas, 4), im_info, anchors + shift, stride, limits, size=1e4)
    found[:, 1:] -= shift
    return found


@proposals.slip("The shortest side counts in pixels of the image as it was: compare with least * im_info's scale.")
def least_unscaled(scores: Array, deltas: Array, im_info: Array, anchors: Array, stride: int, *limits: float) -> Array:
    given = (*limits[:3], limits[3] / float(im_info[0, 2]))
    return _proposed(scores[:, len(anchors) :], by_position(deltas, 4), im_info, anchors, stride, given)


@proposals.slip("x grows with the column and y with the row. Yours adds stride * row to x, and stride * column to y.")
def rows_and_columns_swapped(
    scores: Array, deltas: Array, im_info: Array, anchors: Array, stride: int, *limits: float
) -> Array:
    return _proposed(scores[:, len(anchors) :], by_position(deltas, 4), im_info, anchors, stride, limits, swapped=True)


# 9. PSROIPooling.


def _psroi_cases(rng: Generator) -> Iterator[tuple[Any, ...]]:
    """Yield rois of whole and of broken corners, some over the edge of the map; of two channels for each of 3 x 3 bins."""
    for scale in (0.5, 0.125):
        x, corners = _normal(rng, 1, 18, 6, 8), rng.uniform(-2, 6, (5, 2)) / scale
        ends = corners + rng.uniform(0.5, 5, (5, 2)) / scale
        rois = np.hstack([np.zeros((5, 1)), corners, ends]).astype(np.float32)
        rois[0] = np.round(rois[0])
        rois[1, 1:] = np.array([2, 1, 6, 4]) / scale + 0.5  # even numbers and a half
        rois[2, 3:] = rois[2, 1:3] - 4  # ends before it begins
        yield x, rois, 3, scale, _normal(rng, 5, 2, 3, 3)


@question(_psroi_cases, parts=("the top", "the gradient of x"))
def ps_roi_pool(x: Array, rois: Array, group: int, scale: float, dy: Array) -> Results:
    """Return y (R, D, G, G) and the gradient of x (1, D * G * G, H, W)."""
    return _pooled(x, rois, group, scale, dy)


def _pooled(x: Array, rois: Array, group: int, scale: float, dy: Array) -> Results:
    return [ops.ps_roi_pool(x, rois, group, scale), ops.ps_roi_pool_backward(dy, rois, scale, x.shape)]


@ps_roi_pool.slip("Channel (d * G + i) * G + j is for class d and bin (i, j): the class comes first. Yours puts the bin first.")
def bin_first(x: Array, rois: Array, group: int, scale: float, dy: Array) -> Results:
    channels = np.arange(x.shape[1]).reshape(group, group, -1).transpose(2, 0, 1).ravel()
    y, dx = _pooled(x[:, channels], rois, group, scale, dy)
    return [y, dx[:, np.argsort(channels)]]


@ps_roi_pool.slip("The last pixel belongs to the roi: its end is round(x2) + 1 before the scale.")
def end_without_one(x: Array, rois: Array, group: int, scale: float, dy: Array) -> Results:
    return _pooled(x, rois - np.array([0, 0, 0, 1, 1], np.float32), group, scale, dy)


@ps_roi_pool.slip("Halves are rounded up: 2.5 to 3. np.round takes them to the even neighbour, 2; use np.floor(x + 0.5).")
def halves_to_even(x: Array, rois: Array, group: int, scale: float, dy: Array) -> Results:
    return _pooled(x, np.round(rois), group, scale, dy)


@ps_roi_pool.slip("A bin sends dy / its number of pixels back to each pixel, since it is their mean; yours sends dy.")
def not_divided(x: Array, rois: Array, group: int, scale: float, dy: Array) -> Results:
    areas = PsRoiPool(group_size=group, spatial_scale=scale).plan(rois, x.shape[2:]).places.areas()
    return _pooled(x, rois, group, scale, dy * areas[:, None].astype(np.float32))


# 10. The whole net.


def shapes() -> Path:
    """Return the folder examples/shapes, of the repository or beside a copy of the notebook. Raises Error."""
    places = [
        Path("../../examples/shapes"),
        Path("examples/shapes"),
        Path(__file__).resolve().parents[2] / "examples" / "shapes",
    ]
    for place in places:
        if place.is_dir():
            return place
    raise Error("no examples/shapes: open the notebook in docs/tutorials of minicaffe's repository, or in a copy by copies.py")


@lru_cache(1)
def shapes_detector() -> Detector:
    """Return the shapes R-FCN."""
    folder = shapes()
    files = folder / "rfcn" / "test.prototxt", folder / "rfcn" / "shapes_rfcn.caffemodel"
    return detection.load(*files, cfg=folder / "shapes.yml", classes=folder / "classes.txt", threshold=0.5)


def _photos(rng: Generator) -> list[tuple[Array]]:
    """Return the scene, and a part of it: shapes lie over its border."""
    scene = load_image(shapes() / "scene.png")
    return [(scene,), (np.ascontiguousarray(scene[80:, 80:]),)]


@question(_photos, rtol=1e-3, atol=1e-2)
def detect(image: Array) -> Array:
    """Return rows (n, 6) of class, score, x1, y1, x2, y2, best first."""
    found = shapes_detector()(image)
    return np.column_stack([found.classes, found.scores, found.boxes])


def _rows(image: Array, scaled: bool = True, deltas_of: int | None = None, threshold: float = 0.3, clips: bool = True) -> Array:
    """Return the rows of `detect`. deltas_of: the class whose deltas are used for all."""
    net = shapes_detector().net
    scores, _ = score_boxes(net, image)
    scale = net.blobs["im_info"].data[0, 2] if scaled else np.float32(1)
    rois, deltas = net.blobs["rois"].data[:, 1:] / scale, net.blobs["bbox_pred"].data
    rows = []
    for k in range(1, scores.shape[1]):
        own = deltas.reshape(len(deltas), -1, 4)[:, k if deltas_of is None else deltas_of]
        boxes = bbox_transform_inv(rois, own)
        if clips:
            boxes = clip_boxes(boxes, np.array(image.shape[:2]))
        likely = scores[:, k] > 0.5
        best = ops.nms(np.column_stack([boxes[likely], scores[likely, k]]), threshold)
        rows += [(k, scores[likely, k][i], *boxes[likely][i]) for i in best]
    return np.array(sorted(rows, key=lambda row: -row[1]))


@detect.slip("The rois are in pixels of the scaled image. Divide them by im_info's scale before you move them.")
def in_the_scaled_image(image: Array) -> Array:
    return _rows(image, scaled=False)


@detect.slip("Each class has its own four deltas: those of class k begin at 4 * k. Yours takes the background's for all.")
def background_deltas(image: Array) -> Array:
    return _rows(image, deltas_of=0)


@detect.slip("A box can reach over the border of the image. Clip to its height and width, image.shape[:2].")
def boxes_not_clipped(image: Array) -> Array:
    return _rows(image, clips=False)


@detect.slip("The best comes first, whatever its class: sort the rows of all classes by their scores.")
def by_class(image: Array) -> Array:
    rows = _rows(image)
    return rows[np.argsort(rows[:, 0], kind="stable")]


@detect.slip("An object is found by many rois: suppress the boxes of each class, with the threshold 0.3.")
def without_suppression(image: Array) -> Array:
    return _rows(image, threshold=1)
