"""A check of a layer's backward against central differences of its forward, in float64.

The objective is sum(weights * tops), with random weights. Its gradient in each element of each differentiable bottom and
learnable blob is computed twice: analytically (backward with the weights as top diffs) and numerically,
(objective(x + step) - objective(x - step)) / (2 step). Source: the idea of Caffe's test_gradient_check_util.hpp, with its kink
range; the tolerance is relative to each blob's gradients, so that small ones are checked as strictly as large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe import rng
from minicaffe.blob import Blob
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_message
from minicaffe.layer import Layer
from minicaffe.layers import create
from minicaffe.mode import TRAIN, Phase
from minicaffe.parameters import did_you_mean
from minicaffe.proto import caffe_pb2


class GradientError(Error):
    """The error for a backward that is not the gradient of its forward; it shows the worst element, analytic and numeric."""


@dataclass(frozen=True)
class GradientReport:
    """The result of a gradient check.

    Attributes
    ----------
    elements : int
        The number of elements compared.
    worst : float
        The largest relative error.
    where : str
        The element with the largest error, with its analytic and numeric gradient.
    """

    elements: int
    worst: float
    where: str


def check_gradient(
    layer: str | caffe_pb2.LayerParameter,
    *bottoms: ArrayLike,
    tops: int = 1,
    phase: Phase = TRAIN,
    bottom_indices: Sequence[int] | None = None,
    **options: Any,
) -> GradientReport:
    """Check the gradients of a layer on the given bottoms, in float64.

    Backward is compared with central differences of forward.
    Learnable blobs whose param_propagate_down is True are checked too.

    Parameters
    ----------
    layer : str or LayerParameter
        The layer, or the text inside ``layer { }``.
    *bottoms : array_like
        The bottoms' values.
    tops : int, default 1
        The number of tops.
    phase : Phase, default TRAIN
        TRAIN or TEST.
    bottom_indices : sequence of int, optional
        The bottoms to check. Default: all except the layer's index_bottoms.
    **options
        Options of `check_layer_gradient`: step, tolerance, kink, kink_range and seed.

    Returns
    -------
    GradientReport
        The number of elements compared, and the largest relative error with its place.

    Raises
    ------
    GradientError
        A gradient is wrong, or there is no element to check.

    Notes
    -----
    The objective is the sum of the tops, weighted at random.
    Source: the idea of Caffe's test_gradient_check_util.hpp, with its kink range.
    The tolerance is relative to each blob's gradients, so small gradients are checked as strictly as large ones.
    """
    for name in options:
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS) or f"; its options are {', '.join(OPTIONS)}"
            raise TypeError(f'check_gradient has no option "{name}"{hint}')
    if isinstance(layer, str):
        param = caffe_pb2.LayerParameter()
        parse_message(layer, param, "<layer>")
    else:
        param = layer
    bottom = [Blob(np.shape(array), np.float64) for array in bottoms]
    for blob, array in zip(bottom, bottoms, strict=True):
        blob.data[...] = array
    top = [Blob((), np.float64) for _ in range(tops)]
    built = create(param, phase=phase, dtype=np.float64)
    built.connect(bottom, top)
    return check_layer_gradient(built, bottom, top, bottom_indices=bottom_indices, **options)


@rng.aside()
def check_layer_gradient(  # noqa: PLR0913 - public, by keyword
    layer: Layer,
    bottom: Sequence[Blob],
    top: Sequence[Blob],
    *,
    bottom_indices: Sequence[int] | None = None,
    step: float = 1e-5,
    tolerance: float = 1e-4,
    kink: float | None = None,
    kink_range: float = 0.0,
    seed: int = 1701,
) -> GradientReport:
    """Check the gradients of a connected float64 layer.

    Parameters
    ----------
    layer : Layer
        The layer.
    bottom, top : sequence of Blob
        The blobs that the layer is connected to.
    bottom_indices : sequence of int, optional
        The bottoms to check. Default: all except the layer's index_bottoms.
    step : float, default 1e-5
        Half the distance of the central differences.
    tolerance : float, default 1e-4
        The largest relative error. It is relative to the larger of both gradients and the rms of the blob's gradient.
    kink : float, optional
        An input value at which forward is not differentiable.
    kink_range : float, default 0
        Elements with ``|x - kink| <= kink_range`` are left out.
    seed : int, default 1701
        For the top weights, and for the layer's random numbers, which are the same in every run.

    Returns
    -------
    GradientReport
        The number of elements compared, and the largest relative error with its place.

    Raises
    ------
    GradientError
        A gradient is wrong: ``|analytic - numeric| > tolerance * max(|analytic|, |numeric|, rms)``.
        Or there is no element to check.
    Error
        The layer is not float64.
    """
    if layer.dtype != np.float64:
        raise Error(f"check_gradient needs a float64 layer; {layer.name or type(layer).__name__} has {layer.dtype}")
    if bottom_indices is None:
        bottom_indices = [i for i in range(len(bottom)) if i not in layer.index_bottoms]
    run = _Run(layer, bottom, top, seed)
    analytic = run.analytic(bottom_indices)
    subjects = [(f"bottom {i}", bottom[i]) for i in bottom_indices] + [(f"weight {i}", b) for i, b in learnt_blobs(layer)]
    elements, worst, where = 0, 0.0, ""
    for (name, blob), gradient in zip(subjects, analytic, strict=True):
        numeric = run.numeric(blob, step)
        smooth = np.ones(blob.shape, bool) if kink is None else np.abs(run.start(blob) - kink) > kink_range
        rms = float(np.sqrt(np.mean(numeric[smooth] ** 2))) if smooth.any() else 0.0
        scale = np.maximum(np.maximum(np.abs(gradient), np.abs(numeric)), max(rms, 1e-8))  # 1e-8: a gradient of zeros
        error = np.where(smooth, np.abs(gradient - numeric) / scale, 0.0)
        error = np.where(np.isfinite(error), error, np.inf)  # NaN would lose every comparison below
        elements += int(smooth.sum())
        if error.size and error.max() > worst:
            at = tuple(int(k) for k in np.unravel_index(int(error.argmax()), error.shape))
            worst = float(error.max())
            where = f"{name}{list(at)}: analytic {gradient[at]:.9g}, numeric {numeric[at]:.9g}"
    if not elements:
        raise GradientError(f'{layer.type} layer "{layer.name}": no element to check')
    if not worst <= tolerance:
        raise GradientError(f'{layer.type} layer "{layer.name}": {where} (relative error {worst:.3g} > {tolerance:g})')
    return GradientReport(elements, worst, where)


OPTIONS = [name for name, one in signature(check_layer_gradient).parameters.items() if one.kind is one.KEYWORD_ONLY]
"""Names of check_gradient's options."""


class _Run:
    """A layer, its blobs' initial contents, and the weights of the objective."""

    def __init__(self, layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob], seed: int) -> None:
        self.layer, self.bottom, self.top, self.seed = layer, bottom, top, seed
        self._start: dict[int, NDArray[Any]] = {id(blob): blob.data.copy() for blob in [*bottom, *layer.blobs]}
        self._forward()
        random = np.random.default_rng(seed)
        counted = [not layer.is_loss or bool(w) for w in layer.loss_weights]  # a loss has no gradient in its other tops
        self.weights = [random.uniform(0.5, 1.5, t.shape) * random.choice([-1, 1], t.shape) * c for t, c in zip(top, counted)]

    def start(self, blob: Blob) -> NDArray[Any]:
        """Return the blob's initial contents."""
        return self._start[id(blob)]

    def objective(self) -> float:
        self._forward()
        return sum(float((w * t.data).sum()) for w, t in zip(self.weights, self.top))

    def analytic(self, bottom_indices: Sequence[int]) -> list[NDArray[Any]]:
        """Return the gradients in these bottoms and in every blob of learnt_blobs."""
        self._restore()
        self._forward()
        for blob, weight in zip(self.top, self.weights):
            blob.diff[...] = weight
        for blob in self.layer.blobs:
            blob.diff[...] = 0
        down = [i in bottom_indices for i in range(len(self.bottom))]
        self.layer.backward_pass(self.top, down, self.bottom)
        return [self.bottom[i].diff.copy() for i in bottom_indices] + [b.diff.copy() for _, b in learnt_blobs(self.layer)]

    def numeric(self, blob: Blob, step: float) -> NDArray[Any]:
        gradient = np.empty(blob.shape)
        for at in np.ndindex(blob.shape):
            values = []
            for delta in (step, -step):
                self._restore()
                blob.data[at] += delta
                values.append(self.objective())
            gradient[at] = (values[0] - values[1]) / (2 * step)
        self._restore()
        return gradient

    def _forward(self) -> None:
        rng.set_random_seed(self.seed)  # the same Dropout mask and samples in every forward
        self.layer.forward_pass(self.bottom, self.top)

    def _restore(self) -> None:
        for blob in [*self.bottom, *self.layer.blobs]:  # forward may change them: in-place bottoms, BatchNorm's statistics
            blob.data[...] = self._start[id(blob)]


def learnt_blobs(layer: Layer) -> list[tuple[int, Blob]]:
    """Return the blobs for which backward computes a gradient (not BatchNorm's statistics), with their indices."""
    return [(i, blob) for i, blob in enumerate(layer.blobs) if layer.param_propagate_down[i]]
