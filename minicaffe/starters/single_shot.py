"""A small SSD that trains from scratch on a CPU, and MobileNet-SSD.

Both follow the published layout: for each map a location and a confidence convolution, Permute, Flatten and PriorBox, then
Concat, and MultiBoxLoss or DetectionOutput. MobileNet-SSD has the published names, so its weights load (those with BatchNorm).

Source: Liu et al., SSD (arXiv:1512.02325); Howard et al., MobileNets (arXiv:1704.04861); chuanqi305's MobileNet-SSD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minicaffe.detection.family import SSD_MEANS
from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe.net_spec import NetSpec, layers, params

from .parts import MSRA, WEIGHTS, XAVIER, biased, convolution, named, normalised

VOC_CLASSES = 21
"""Confidence layers for another number of classes have other names, because published weights do not fit them."""


class Prior(NamedTuple):
    """The boxes at each place of a map, in pixels of the input.

    least, most: sides of squares; each pair gives the square of the geometric mean too. ratios: aspect ratios of boxes with the
    area of a least square.
    """

    least: Sequence[float]
    most: Sequence[float]
    ratios: Sequence[float]

    @property
    def per_place(self) -> int:
        return len(self.least) * (1 + 2 * len(self.ratios)) + len(self.most)


class Images(NamedTuple):
    """The images that a net takes: the side of the square, means and scale; and for training the batch and the augmentation.

    colours: the probability of another saturation, and of another hue. expansion: the largest canvas around an image.
    overlaps, trials: of the batch samplers. interpolations: of resizing.
    """

    size: int
    means: Sequence[float]
    scale: float
    batch: int
    colours: float
    expansion: float
    overlaps: Sequence[float]
    trials: int
    interpolations: Sequence[str]


SHORT_MEMORY = {"moving_average_fraction": 0.99}
"""Of BatchNorm. The default, 0.999, would keep the statistics of the first iterations of a short training."""
# The published augmentation takes as long as the net. LINEAR is also the interpolation of `detect`.
SMALL = Images(
    240, SSD_MEANS, 1, batch=8, colours=0, expansion=1.5, overlaps=(0.5,), trials=20, interpolations=("LINEAR",),
)  # fmt: skip
SMALL_TRUNK = (
    ("conv1_1", 16, 2), ("conv2_1", 32, 2), ("conv3_1", 48, 2), ("conv3_2", 64, 1), ("conv4_1", 96, 2), ("conv4_2", 96, 1),
    ("conv5_1", 128, 2), ("conv5_2", 128, 1), ("conv6_1", 128, 2),
)  # fmt: skip
"""The names, widths and strides of the small SSD's convolutions."""
SMALL_PRIORS = {
    "conv3_2": Prior((12, 24), (24, 48), (2,)),
    "conv4_2": Prior((48,), (84,), (2,)),
    "conv5_2": Prior((84,), (132,), (2,)),
    "conv6_1": Prior((132,), (200,), (2,)),
}
"""About three strides long: places are close enough together that each object overlaps several boxes."""
MOBILE = Images(
    300, (127.5,) * 3, 0.007843, batch=8, colours=0.5, expansion=4, overlaps=(0.1, 0.3, 0.5, 0.7, 0.9), trials=50,
    interpolations=("LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"),
)  # fmt: skip
MOBILE_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1),
    (1024, 2), (1024, 1),
)  # fmt: skip
"""The widths and strides of MobileNet's blocks conv1 to conv13."""
MOBILE_EXTRAS = ((14, 256, 512), (15, 128, 256), (16, 128, 256), (17, 64, 128))
"""The numbers and widths of the pairs of convolutions after MobileNet."""
MOBILE_PRIORS = {
    "conv11": Prior((60,), (), (2,)),
    "conv13": Prior((105,), (150,), (2, 3)),
    "conv14_2": Prior((150,), (195,), (2, 3)),
    "conv15_2": Prior((195,), (240,), (2, 3)),
    "conv16_2": Prior((240,), (285,), (2, 3)),
    "conv17_2": Prior((285,), (300,), (2, 3)),
}


def ssd(classes: int, train: bool) -> caffe_pb2.NetParameter:
    """Return the small SSD. classes: their number with the background."""
    n = NetSpec()
    _inputs(n, SMALL, train)
    maps, last = {}, n.data
    for name, width, stride in SMALL_TRUNK:
        last = _block(n, name, last, width, 3, stride=stride)
        maps[name] = last
    _heads(n, maps, SMALL_PRIORS, classes, kernel=3)
    return _finished(n, "SSD", classes, train)


def mobilenet_ssd(classes: int, train: bool) -> caffe_pb2.NetParameter:
    """Return MobileNet-SSD. classes: their number with the background."""
    n = NetSpec()
    _inputs(n, MOBILE, train)
    last = _block(n, "conv0", n.data, width := 32, 3, stride=2)
    maps = {}
    for i, (wider, stride) in enumerate(MOBILE_BLOCKS, 1):
        last = _block(n, f"conv{i}/dw", last, width, 3, stride=stride, group=width)
        maps[f"conv{i}"] = last = _block(n, f"conv{i}", last, width := wider, 1)
    for i, narrow, wide in MOBILE_EXTRAS:
        last = _block(n, f"conv{i}_1", last, narrow, 1)
        maps[f"conv{i}_2"] = last = _block(n, f"conv{i}_2", last, wide, 3, stride=2)
    _heads(n, maps, MOBILE_PRIORS, classes, kernel=1)
    return _finished(n, "MobileNet-SSD", classes, train)


def _block(n: NetSpec, name: str, bottom: Any, width: int, kernel: int, **more: Any) -> Any:
    """Add a convolution with BatchNorm, Scale and ReLU; return the last. more: fields of the convolution."""
    n[name] = convolution(bottom, width, kernel, bias_term=False, param=[WEIGHTS], weight_filler=MSRA, **more)
    return normalised(n, n[name], (f"{name}/bn", f"{name}/scale", f"{name}/relu"), **SHORT_MEMORY)


def _inputs(n: NetSpec, images: Images, train: bool) -> None:
    """Add the data layer with SSD's augmentation, or in TEST the input."""
    if not train:
        n.data = layers.Input(shape={"dim": [1, 3, images.size, images.size]})
        return
    interpolations = [getattr(params.Resize, mode) for mode in images.interpolations]
    resize = {"prob": 1, "resize_mode": params.Resize.WARP, "height": images.size, "width": images.size}
    distortion = {
        "brightness_prob": 0.5, "brightness_delta": 32, "contrast_prob": 0.5, "contrast_lower": 0.5, "contrast_upper": 1.5,
        "hue_prob": images.colours, "hue_delta": 18, "saturation_prob": images.colours, "saturation_lower": 0.5,
        "saturation_upper": 1.5,
    }  # fmt: skip
    transform = {
        "scale": images.scale,
        "mirror": True,
        "mean_value": list(images.means),
        "resize_param": {**resize, "interp_mode": interpolations},
        "emit_constraint": {"emit_type": caffe_pb2.EmitConstraint.CENTER},
        "distort_param": distortion,
        "expand_param": {"prob": 0.5, "max_expand_ratio": images.expansion},
    }
    shape = {"min_scale": 0.3, "max_scale": 1, "min_aspect_ratio": 0.5, "max_aspect_ratio": 2}
    bounds = [*({"min_jaccard_overlap": least} for least in images.overlaps), {"max_jaccard_overlap": 1}]
    samplers: list[dict[str, Any]] = [{"max_sample": 1, "max_trials": 1}]
    samplers += [
        {"sampler": shape, "sample_constraint": bound, "max_sample": 1, "max_trials": images.trials} for bound in bounds
    ]
    n.data, n.label = layers.AnnotatedData(
        ntop=2,
        transform_param=transform,
        data_param={"batch_size": images.batch, "backend": params.Data.LMDB},
        annotated_data_param={"batch_sampler": samplers},
    )


def _heads(n: NetSpec, maps: dict[str, Any], priors: dict[str, Prior], classes: int, kernel: int) -> None:
    """Add the predictions and the priors of each map, and join them."""
    parts: dict[str, list[Any]] = {"loc": [], "conf": [], "priorbox": []}
    for name, prior in priors.items():
        for part, values in (("loc", 4), ("conf", classes)):
            renamed = f"_{classes}" if part == "conf" and classes != VOC_CLASSES else ""
            head = f"{name}_mbox_{part}"
            n[head] = convolution(maps[name], prior.per_place * values, kernel, name=head + renamed, **biased(XAVIER))
            n[f"{head}_perm"] = layers.Permute(n[head], order=[0, 2, 3, 1])
            n[f"{head}_flat"] = layers.Flatten(n[f"{head}_perm"], axis=1)
            parts[part].append(n[f"{head}_flat"])
        ratios = {"aspect_ratio": list(prior.ratios), "flip": True}
        sizes = {"min_size": list(prior.least), "max_size": list(prior.most), "clip": False}
        n[f"{name}_mbox_priorbox"] = layers.PriorBox(
            maps[name], n.data, **sizes, **ratios, variance=[0.1, 0.1, 0.2, 0.2], offset=0.5
        )
        parts["priorbox"].append(n[f"{name}_mbox_priorbox"])
    for part, joined in parts.items():
        n[f"mbox_{part}"] = layers.Concat(*joined, axis=2 if part == "priorbox" else 1)


def _finished(n: NetSpec, name: str, classes: int, train: bool) -> caffe_pb2.NetParameter:
    """Add the loss, or in TEST the detections; return the net."""
    if train:
        loss = {
            "loc_loss_type": params.MultiBoxLoss.SMOOTH_L1, "conf_loss_type": params.MultiBoxLoss.SOFTMAX, "loc_weight": 1,
            "num_classes": classes, "share_location": True, "match_type": params.MultiBoxLoss.PER_PREDICTION,
            "overlap_threshold": 0.5, "use_prior_for_matching": True, "background_label_id": 0, "use_difficult_gt": True,
            "neg_pos_ratio": 3, "neg_overlap": 0.5, "code_type": params.PriorBox.CENTER_SIZE,
            "ignore_cross_boundary_bbox": False, "mining_type": params.MultiBoxLoss.MAX_NEGATIVE,
        }  # fmt: skip
        n.mbox_loss = layers.MultiBoxLoss(
            n.mbox_loc, n.mbox_conf, n.mbox_priorbox, n.label, propagate_down=[True, True, False, False],
            loss_param={"normalization": params.Loss.VALID}, multibox_loss_param=loss,
        )  # fmt: skip
    else:
        n.mbox_conf_reshape = layers.Reshape(n.mbox_conf, shape={"dim": [0, -1, classes]})
        n.mbox_conf_softmax = layers.Softmax(n.mbox_conf_reshape, axis=2)
        n.mbox_conf_flatten = layers.Flatten(n.mbox_conf_softmax, axis=1)
        n.detection_out = layers.DetectionOutput(
            n.mbox_loc, n.mbox_conf_flatten, n.mbox_priorbox, num_classes=classes, share_location=True, background_label_id=0,
            nms_param={"nms_threshold": 0.45, "top_k": 400}, code_type=params.PriorBox.CENTER_SIZE, keep_top_k=200,
            confidence_threshold=0.01,
        )  # fmt: skip
    return named(n, name)
