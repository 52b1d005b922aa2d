"""MultiStageMeanfield: a dense conditional random field's mean-field iterations (CRF-RNN).

    q[0] = the second bottom;   q[t + 1] = unary - compat (spatial n_s F_s + bilateral n_b F_b) softmax(q[t])

F_s and F_b filter each class's map by a Gaussian, of positions / theta_gamma, and of positions / theta_alpha with colours /
theta_beta; n = 1 / (F 1 + 1e-20); the matrices mix the classes.

Source: Zheng et al., Conditional Random Fields as Recurrent Neural Networks (2015); torrvision/caffe's
multi_stage_meanfield.cpp and meanfield_iteration.cpp.
"""

# permutohedral.py has the filters.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.errors import Error
from minicaffe.files import granted, read_text
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.loss.softmax import softmax
from minicaffe.proto import caffe_pb2

from .permutohedral import Lattice, filter_maps


class Filter(NamedTuple):
    """A lattice, and the factors (pixels,) of its outputs (C, pixels)."""

    lattice: Lattice
    norm: Array

    def smooth(self, x: Array) -> Array:
        return self.lattice.filter(x) * self.norm

    def transposed(self, dy: Array) -> Array:
        return self.lattice.filter(dy * self.norm, reverse=True)


class MultiStageMeanfield(Layer):
    """The class scores after num_iterations mean-field iterations.

    bottom: unary (N, C, H, W) scores, the scores (N, C, H, W) to begin with, image (N, 3, H, W), in the units of theta_beta and
    without a gradient. top: scores (N, C, H, W), not normalised.
    blobs: spatial, bilateral, compat, (1, 1, C, C) each. At first spatial and bilateral have on their diagonals the C numbers
    of the files spatial.par and bilateral.par in the working directory, and compat -1 (Potts). multi_stage_meanfield_param:
    theta_alpha, theta_gamma in pixels, theta_beta, num_iterations; the other fields have no effect, as in the original.
    Raises LayerError for other shapes, a theta <= 0, num_iterations 0, a file that is missing or holds no numbers, and an
    image that is not finite or too far apart in its colours. A file of fewer than C numbers is a warning, and the others are 0.
    """

    type = "MultiStageMeanfield"
    num_bottom = 3
    num_top = 1
    index_bottoms = (2,)
    param_block = ("multi_stage_meanfield_param",)
    weight_names = ("spatial", "bilateral", "compat")
    uses_kernels = ((filter_maps,), (filter_maps,))

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.multi_stage_meanfield_param
        for name in ("theta_alpha", "theta_beta", "theta_gamma"):
            value = getattr(param, name)
            if not 0 < value < math.inf:
                raise self.error(f"{name} must be > 0, got {value:g}", f"multi_stage_meanfield_param.{name}")
        if not param.num_iterations:
            raise self.error("num_iterations must be > 0, got 0", "multi_stage_meanfield_param.num_iterations")
        self._check_shapes(bottom)
        self._classes = bottom[0].shape[1]
        empty = not self.blobs
        self.learn([(1, 1, self._classes, self._classes)] * 3, [caffe_pb2.FillerParameter()] * 3)
        if empty:
            for blob, name in zip(self.blobs, ("spatial.par", "bilateral.par")):
                np.fill_diagonal(blob.data[0, 0], self._numbers(name))
            np.fill_diagonal(self.blobs[2].data[0, 0], -1)
        self._prob = Blob((0,), self.dtype)
        """softmax(q[t]) of all iterations, (N, num_iterations, C, pixels); with forward_only, of one iteration."""
        self._size = (-1, -1)

    def _numbers(self, name: str) -> list[float]:
        """Return the first C numbers of a file in the working directory."""
        try:
            words = read_text(granted(name)).split()
        except (Error, OSError, UnicodeDecodeError) as error:
            raise self.error(f"needs the file {name}, with a weight for each of {self._classes} classes: {error}") from error
        try:
            numbers = [float(word) for word in words[: self._classes]]
        except ValueError as error:
            raise self.error(f"{name}: {error}") from error
        if missing := self._classes - len(numbers):
            self.warn(
                f"{name} has {len(numbers)} numbers for {self._classes} classes: the others' are 0 until weights are loaded"
            )
        return numbers + [0.0] * missing

    def _check_shapes(self, bottom: Sequence[Blob]) -> None:
        unary, scores, image = (blob.shape for blob in bottom)
        if len(unary) != 4 or scores != unary:
            raise self.error(f"needs two bottoms of scores of one shape (N, C, H, W), got {unary} and {scores}", "bottom[1]")
        if image != (unary[0], 3, *unary[2:]):
            raise self.error(f"the image must be {(unary[0], 3, *unary[2:])}, got {image}", "bottom[2]")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._check_shapes(bottom)
        count, classes, height, width = bottom[0].shape
        if classes != self._classes:
            raise self.error(
                f"was set up for {self._classes} classes, the bottom's shape is now {bottom[0].shape}", "bottom[0]"
            )
        top[0].reshape(bottom[0].shape)
        kept = 1 if self.forward_only else self.param.multi_stage_meanfield_param.num_iterations
        self._prob.reshape(count, kept, classes, height * width)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        iterations = self.param.multi_stage_meanfield_param.num_iterations
        # splat, slice and matrices; without the blur
        multiply_adds = iterations * bottom[0].count * (2 * (3 + 6) + 3 * self._classes)
        saved = data_bytes([self._prob])
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=multiply_adds, saved=saved)

    def _filter(self, features: Array) -> Filter:
        """Return the filter of features (d, H, W). Raises LayerError if they are too far apart."""
        try:
            lattice = Lattice(features.reshape(len(features), -1).T, self.dtype)
        except OverflowError as error:
            raise self.error(str(error), "bottom[2]") from error
        ones = np.ones((1, features[0].size), self.dtype)
        return Filter(lattice, 1 / (lattice.filter(ones)[0] + self.dtype.type(1e-20)))

    def _filters(self, image: Array) -> tuple[Filter, Filter]:
        """Return the spatial and the bilateral filter of an image (3, H, W)."""
        param, size = self.param.multi_stage_meanfield_param, image.shape[1:]
        if not np.isfinite(image).all():
            raise self.error("the image is not finite", "bottom[2]")
        rows, columns = np.indices(size, np.float32)
        places = np.stack([columns, rows])
        if self._size != size:
            self._spatial, self._size = self._filter(places / np.float32(param.theta_gamma)), size
        colours = (image / self.dtype.type(param.theta_beta)).astype(np.float32)
        return self._spatial, self._filter(np.concatenate([places / np.float32(param.theta_alpha), colours]))

    def _matrices(self) -> list[Array]:
        return [blob.data[0, 0] for blob in self.blobs]

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        spatial, bilateral, compat = self._matrices()
        self._made: list[tuple[Filter, Filter]] = []
        for n, image in enumerate(bottom[2].data):
            filters = self._filters(image)
            if not self.forward_only:
                self._made.append(filters)
            unary, q = (blob.data[n].reshape(self._classes, -1) for blob in bottom[:2])
            for t in range(self.param.multi_stage_meanfield_param.num_iterations):
                prob = softmax(q[None, :], out=self._prob.data[n, t % self._prob.shape[1]][None])[0]
                message = spatial @ filters[0].smooth(prob) + bilateral @ filters[1].smooth(prob)
                q = unary - compat @ message
            top[0].data[n] = q.reshape(top[0].shape[1:])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Compute the gradients.

        The filters and the matrices commute: the gradient d of each q[t + 1] is filtered once for all of them.
        """
        spatial, bilateral, compat = self._matrices()
        dspatial, dbilateral, dcompat = (np.zeros_like(matrix) for matrix in (spatial, bilateral, compat))
        for n, filters in enumerate(self._made):
            d = top[0].diff[n].reshape(self._classes, -1)
            dunary = np.zeros_like(d)
            for prob in self._prob.data[n, ::-1]:
                dunary += d
                smooth = [one.transposed(-d) for one in filters]
                with_prob = [each @ prob.T for each in smooth]
                dspatial += compat.T @ with_prob[0]
                dbilateral += compat.T @ with_prob[1]
                dcompat += with_prob[0] @ spatial.T + with_prob[1] @ bilateral.T
                dprob = (compat @ spatial).T @ smooth[0] + (compat @ bilateral).T @ smooth[1]
                d = prob * (dprob - (prob * dprob).sum(axis=0))
            for k, diff in enumerate((dunary, d)):
                if propagate_down[k]:
                    bottom[k].diff[n] = diff.reshape(bottom[k].shape[1:])
        for blob, diff, wanted in zip(self.blobs, (dspatial, dbilateral, dcompat), self.param_propagate_down):
            if wanted:
                blob.diff[0, 0] += diff
