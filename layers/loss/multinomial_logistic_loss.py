"""Losses of given scores or probabilities at the true classes: MultinomialLogisticLoss, InfogainLoss, HingeLoss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import current
from minicaffe.cuda.launches import launch_loss, launch_softmax
from minicaffe.errors import DataError, WeightsError
from minicaffe.files import granted
from minicaffe.formats.weights import read_binaryproto
from minicaffe.layers.loss.loss import ImageLoss, check_label_count, class_axis, read_labels, watch_labels
from minicaffe.layers.loss.softmax import softmax
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.proto import caffe_pb2

LOG_THRESHOLD = 1e-20
"""Lower limit of a probability."""


class MultinomialLogisticLoss(ImageLoss):
    """The mean negative log of given probabilities at the true classes.

        loss = -sum_i log(max(p_i[label_i], 1e-20)) / N        dp_i[label_i] = -1 / (N max(p_i[label_i], 1e-20))

    Source: Caffe's multinomial_logistic_loss_layer.cpp; its gradient does not see the floor 1e-20.

    bottom: p (N, ...) probabilities, of which every value after the first axis is a class; labels (N,). top: loss ().
    Raises LayerError for another number of labels, and for a label that is not whole or not a class.
    """

    type = "MultinomialLogisticLoss"
    copies = (0, 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        true, _ = self._true(bottom)
        top[0].data[...] = -np.log(true).sum(dtype=np.float64) / max(1, self.split.outer)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            true, labels = self._true(bottom)
            scale = float(top[0].diff.item()) / max(1, self.split.outer)
            bottom[0].diff[...] = 0
            np.put_along_axis(bottom[0].diff.reshape(self.split[:2]), labels, -scale / true, axis=1)

    def _true(self, bottom: Sequence[Blob]) -> tuple[Array, NDArray[np.intp]]:
        """Return the true classes' probabilities, at least LOG_THRESHOLD, and the labels, both (N, 1)."""
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        true = np.take_along_axis(bottom[0].data.reshape(self.split[:2]), labels, axis=1)
        return np.maximum(true, LOG_THRESHOLD), labels


class InfogainLoss(SoftmaxWithLoss):
    """Infogain loss of scores along infogain_loss_param.axis (default 1) against whole labels.

    Softmax, then cross entropy weighed by a matrix over pairs of classes.

        loss = -sum_i sum_k H[label_i, k] log(max(p_i[k], 1e-20)) / divisor
        dx_i[k] = (p_i[k] sum_j H[label_i, j] - H[label_i, k]) / divisor

    Source: Caffe's infogain_loss_layer.cpp. With H the identity it is SoftmaxWithLoss.

    bottom: x (N, C, ...) scores, labels (N, ...) one for each position, optionally H of C*C values; without it H is read
    from the file infogain_loss_param.source (.binaryproto). top: loss (); optionally the probabilities, of x's shape.
    loss_param as in SoftmaxWithLoss. Only x gets a gradient.
    Raises LayerError when H is missing or has another size, and for labels as SoftmaxWithLoss.
    """

    type = "InfogainLoss"
    num_bottom = (2, 3)
    index_bottoms = (1, 2)
    param_block = ("infogain_loss_param", "loss_param", "softmax_param")
    copies = (4, 2)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        source = self.param.infogain_loss_param.source
        if len(bottom) == 3:
            return
        if not source:
            raise self.error("needs a third bottom or infogain_loss_param.source for its matrix", "infogain_loss_param")
        try:
            stored = read_binaryproto(granted(source))
        except (DataError, WeightsError) as error:
            raise self.error(str(error), "infogain_loss_param.source") from error
        self.stored = Blob(stored.shape, self.dtype)
        self.stored.data[...] = stored

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.split = class_axis(self, bottom[0], self.param.infogain_loss_param.axis, "infogain_loss_param.axis")
        check_label_count(self, self.split, bottom)
        shape = self._matrix(bottom).shape
        if np.prod(shape) != self.split.classes**2:
            wanted = f"{self.split.classes} x {self.split.classes} values for its {self.split.classes} classes"
            raise self.error(f"the infogain matrix needs {wanted}, got shape {shape}", "bottom[2]")
        self.prob.reshape(self.split)
        top[0].reshape(())
        if len(top) > 1:
            top[1].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        prob = softmax(bottom[0].data.reshape(self.split), out=self.prob.data)
        weight, kept = self._weights(bottom)
        losses = -weight * np.log(np.maximum(prob, LOG_THRESHOLD))  # Caffe's kLOG_THRESHOLD keeps the loss finite
        self.divisor.data[...] = self.divisor_for(kept)
        top[0].data[...] = losses.sum(dtype=np.float64) / self.divisor.read_data()
        if len(top) > 1:
            top[1].data[...] = prob.reshape(top[1].shape)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        (outer, classes, inner), prob = self.split, self.prob.device_data("write")
        launch_softmax(self.dtype, *self.split, bottom[0].device_data("read"), prob)
        labels, matrix = watch_labels(self, bottom[1], self.split, self.ignore), self._matrix(bottom).device_data("read")
        given = (outer * inner, classes, inner, prob, matrix, LOG_THRESHOLD, *labels)
        fixed, kernel = self.normalization.fixed_divisor(outer, outer * inner), "infogain_loss.infogain"
        launch_loss(kernel, self.dtype, outer * inner, *given, loss=top[0], fixed=fixed, divisor=self.divisor)
        for blob in top[1:]:
            current().copy(blob.device_data("write"), prob, blob.count * self.dtype.itemsize)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            weight, _ = self._weights(bottom)
            # The gradient of -sum_j H_j log p_j in x_k is p_k sum_j H_j - H_k.
            dx = self.prob.data * weight.sum(axis=1, keepdims=True) - weight
            dx *= float(top[0].diff.item()) / float(self.divisor.read_data())
            bottom[0].diff[...] = dx.reshape(bottom[0].shape)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        outer, classes, inner = self.split
        arrays = [blob.device_data("read") for blob in (self.prob, self._matrix(bottom), bottom[1])]
        scale = (top[0].device_diff("read"), self.divisor.device_data("read"), bottom[0].device_diff("write"))
        given = (outer * inner, classes, inner, *arrays, self.ignore is not None, self.ignore or 0, *scale)
        self.launch("infogain_loss.infogain_backward", outer * inner, *given)

    def _matrix(self, bottom: Sequence[Blob]) -> Blob:
        return bottom[2] if len(bottom) == 3 else self.stored

    def _weights(self, bottom: Sequence[Blob]) -> tuple[Array, NDArray[np.bool_]]:
        """Return the rows of H at the labels (outer, C, inner), 0 if ignored, and which labels count (outer, inner)."""
        labels, kept = read_labels(self, bottom[1].data, self.split, self.ignore)
        matrix = self._matrix(bottom).read_data().reshape(self.split.classes, self.split.classes)
        return np.moveaxis(matrix[labels], 2, 1) * kept[:, None], kept  # (outer, inner, C) to (outer, C, inner)


class HingeLoss(ImageLoss):
    """Hinge loss of scores against one whole label per image, with hinge_loss_param.norm L1 (default) or L2.

    One-versus-all margins.

        m_ik = max(0, 1 - s_ik x_ik), s = 1 at the true class and -1 elsewhere
        L1: loss = sum(m) / N        L2: loss = sum(m^2) / N

    Source: Caffe's hinge_loss_layer.cpp.

    bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: loss ().
    Raises LayerError for another number of labels, and for a label that is not whole or not a class.
    """

    type = "HingeLoss"
    param_block = ("hinge_loss_param",)
    copies = (3, 5)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.squared = self.param.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        margins, _ = self._margins(bottom)
        losses = np.square(margins) if self.squared else margins
        top[0].data[...] = losses.sum(dtype=np.float64) / max(1, self.split.outer)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            margins, sides = self._margins(bottom)
            # Margins that do not count are 0, and so are their signs.
            slopes = 2 * margins if self.squared else np.sign(margins)
            scale = float(top[0].diff.item()) / max(1, self.split.outer)
            bottom[0].diff[...] = (-sides * slopes * scale).reshape(bottom[0].shape)

    def _margins(self, bottom: Sequence[Blob]) -> tuple[Array, Array]:
        """Return max(0, 1 - s x) and s, both (N, C)."""
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        x = bottom[0].data.reshape(self.split[:2])
        sides = np.full(x.shape, -1, x.dtype)
        np.put_along_axis(sides, labels, 1, axis=1)  # each class against the rest: 1 at the label, -1 elsewhere
        return np.maximum(0, 1 - sides * x), sides
