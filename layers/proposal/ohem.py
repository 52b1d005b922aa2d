"""Online hard example mining: R-FCN's selection of rois, and the two losses that return each roi's loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import current, launch_blocks
from minicaffe.cuda.launches import lanes_of, launch_loss
from minicaffe.errors import LayerError
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss import DifferenceLoss, check_same_shape, device_diffs, put_opposite, read_normalization
from minicaffe.layers.loss.smooth_l1_loss import smooth_l1, smooth_l1_backward, weighted_difference
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss


class BoxAnnotatorOHEM(Layer):
    """Online hard example mining: only each image's roi_per_img hardest rois keep their labels and box weights.

        chosen: the roi_per_img rois of largest loss among those with the same batch index (ties: the earlier roi)
        labels' = labels where chosen, else ignore_label        weights' = weights where chosen, else 0

    Source: box_annotator_ohem_layer of R-FCN's Caffe (Shrivastava, Gupta, Girshick, CVPR 2016, section 4). The original sorts
    by loss with an unstable sort; here ties go to the earlier roi.

    bottom: rois (R, 5, H, W), whose channel 0 is the batch index; losses (R, 1, H, W); labels (R, 1, H, W); box weights
    (R, C, H, W). H and W are 1 as a rule and may be left out. top: labels (R, 1, H, W), ignore_label (default -1) where not
    chosen; box weights (R, C, H, W), 0 where not chosen. No gradient.
    Raises LayerError when roi_per_img is 0, for other shapes, and for a batch index that is negative or not whole.
    """

    type = "BoxAnnotatorOHEM"
    num_bottom = 4
    num_top = 2
    param_block = ("box_annotator_ohem_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.param.box_annotator_ohem_param.roi_per_img:
            raise self.error("roi_per_img must be > 0, got 0", "box_annotator_ohem_param.roi_per_img")
        self._chosen = Blob((), np.uint8)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rois = bottom[0]
        wanted = (rois.num, rois.height, rois.width)
        for i, channels, what in ((0, 5, "rois"), (1, 1, "losses"), (2, 1, "labels"), (3, bottom[3].channels, "box weights")):
            shape = (bottom[i].num, bottom[i].channels, bottom[i].height, bottom[i].width)
            if shape != (wanted[0], channels, *wanted[1:]):
                raise self.error(
                    f"bottom {i} ({what}) must have shape {(wanted[0], channels, *wanted[1:])}, got {bottom[i].shape}",
                    f"bottom[{i}]",
                )
        top[0].reshape(rois.num, 1, rois.height, rois.width)
        self._chosen.reshape(top[0].shape)
        top[1].reshape(rois.num, bottom[3].channels, rois.height, rois.width)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.box_annotator_ohem_param
        shape = top[0].shape
        images = self._images(bottom[0])
        wrong = ~((images >= 0) & (images == np.floor(images)))
        if wrong.any():
            raise self._no_index(images, int(wrong.argmax()))
        chosen = hardest(images, bottom[1].data.reshape(-1), param.roi_per_img).reshape(shape)
        top[0].data[...] = np.where(chosen, bottom[2].data.reshape(shape), param.ignore_label)
        top[1].data[...] = np.where(chosen, bottom[3].data.reshape(top[1].shape), 0)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, count = self.param.box_annotator_ohem_param, top[0].count
        inner, channels = top[0].height * top[0].width, top[1].channels
        rois, losses, labels, weights = (blob.device_data("read") for blob in bottom)
        wrong = current().current_stream.watch(lambda left: self._no_index(self._images(bottom[0]), top[0].count - left))
        chosen, kept = self._chosen.device_data("write"), top[0].device_data("write")
        given = (count, inner, rois, losses, labels, param.roi_per_img, param.ignore_label, chosen, kept, wrong)
        # 8 warps for each block, one roi for each warp.
        launch_blocks("box_annotator_ohem.choose_hardest", self.dtype, (-(-count // 8), 1), (256, 1, 1), *given)
        count, kept = top[1].count, top[1].device_data("write")
        self.launch("box_annotator_ohem.keep_hardest", count, count, channels, inner, chosen, weights, kept)

    def _images(self, rois: Blob) -> Array:
        return rois.read_data().reshape(rois.num, 5, rois.height, rois.width)[:, 0].reshape(-1)

    def _no_index(self, images: Array, roi: int) -> LayerError:
        return self.error(f"roi {roi} has batch index {images[roi]:g}, which is not a whole number >= 0", "bottom[0]")


def hardest(images: Array, losses: Array, per_image: int) -> NDArray[np.bool_]:
    """Return which rois (R,) have the per_image largest losses (R,) of their image (R,). Ties go to the earlier roi."""
    order = np.lexsort((-losses, images))  # by image, then by descending loss; lexsort is stable
    _, first, counts = np.unique(images[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, counts)  # rank among the rois of the same image
    chosen = np.zeros(len(order), bool)
    chosen[order[rank < per_image]] = True
    return chosen


class SmoothL1LossOHEM(DifferenceLoss):
    """The smooth L1 loss of boxes that also returns each roi's loss, normalized by loss_param.

        d = w * (x - target)        losses_i = sum_c f(d_ic)        loss = sum_i losses_i / divisor
        f(d) = 0.5 d^2 where |d| < 1, else |d| - 0.5

    Source: smooth_l1_loss_ohem_layer of R-FCN's Caffe (where it is named SmoothL1Loss in some trees).

    bottom: x (R, C, H, W), target, optionally w, all of x's shape, where (R, 8) is (R, 8, 1, 1).
    top: loss (); optionally the losses before division, summed over channels (R, 1, H, W), whose diff is not used.
    loss_param: normalization (FULL and VALID: R*H*W, BATCH_SIZE: R, PRE_FIXED, NONE), normalize, pre_fixed_normalizer.
    Both x and target get gradients. As in the original, the loss counts only with an explicit loss_weight.
    Raises LayerError for other shapes.
    """

    type = "SmoothL1LossOHEM"
    num_bottom = (2, 3)
    num_top = (1, 2)
    is_loss = False
    index_bottoms = (2,)
    param_block = ("loss_param",)
    copies = (5, 2)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.normalization = read_normalization(self.param.loss_param)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        for i in range(1, len(bottom)):
            check_same_shape(self, bottom, i)
        x = bottom[0]
        self.difference.reshape(x.num, x.channels, x.height, x.width)
        if len(top) > 1:
            top[1].reshape(x.num, 1, x.height, x.width)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        d = weighted_difference(*self._arrays(bottom), out=self.difference.data)
        losses = smooth_l1(d).sum(axis=1, keepdims=True)  # (R, 1, H, W), which BoxAnnotatorOHEM ranks
        top[0].data[...] = losses.sum(dtype=np.float64) / self._divisor(bottom[0])
        if len(top) > 1:
            top[1].data[...] = losses

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, positions = self.difference.shape, bottom[0].num * bottom[0].height * bottom[0].width
        inner = shape[2] * shape[3]
        lanes = lanes_of(inner)
        arrays = [blob.device_data("read") for blob in bottom] + [0] * (3 - len(bottom))
        arrays += [self.difference.device_data("write"), top[1].device_data("write") if len(top) > 1 else 0]
        given = (positions, shape[1], inner, lanes, *arrays)
        divisor = self._divisor(bottom[0])
        launch_loss("smooth_l1_loss.smooth_l1_positions", self.dtype, positions * lanes, *given, loss=top[0], fixed=divisor)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dx = smooth_l1_backward(self.difference.data)
        for weight in self._arrays(bottom)[2:]:
            dx *= weight
        dx *= float(top[0].diff.item()) / self._divisor(bottom[0])
        put_opposite(dx.reshape(bottom[0].shape), propagate_down, bottom)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        count, divisor = bottom[0].count, self._divisor(bottom[0])
        weight = bottom[2].device_data("read") if len(bottom) > 2 else 0
        given = (count, self.difference.device_data("read"), weight, 0, 1.0, 1.0, top[0].device_diff("read"), divisor)
        self.launch("smooth_l1_loss.smooth_l1_loss_backward", count, *given, *device_diffs(bottom[:2], propagate_down))

    def _arrays(self, bottom: Sequence[Blob]) -> list[Array]:
        """Return the bottoms' data (R, C, H, W)."""
        return [b.data.reshape(self.difference.shape) for b in bottom]

    def _divisor(self, x: Blob) -> float:
        positions = x.num * x.height * x.width
        return self.normalization.divisor(images=x.num, positions=positions, valid=positions)


class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """SoftmaxWithLoss that also returns each roi's loss, for hard example mining.

        losses_i = -log(max(p_i[label_i], FLT_MIN))        loss = sum_i losses_i / divisor

    Source: softmax_loss_ohem_layer.cpp of R-FCN's Caffe (Shrivastava, Gupta, Girshick, CVPR 2016, section 4).

    bottom: x (R, C, ...) scores, labels (R, ...). top: loss (); optionally the probabilities, of x's shape; optionally the
    losses before division, of the labels' shape, 0 where ignored. The diffs of the optional tops are not used.
    Raises LayerError as SoftmaxWithLoss.
    """

    type = "SoftmaxWithLossOHEM"
