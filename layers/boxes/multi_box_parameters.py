"""MultiBoxLoss's parameters: which mining, and which do not go together. Source: the SSD fork's multibox_loss_layer.cpp."""

from __future__ import annotations

from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .multi_box_mining import HARD_EXAMPLE, MAX_NEGATIVE, NONE

Param = caffe_pb2.MultiBoxLossParameter


def mining_type(layer: Layer, param: Param) -> int:
    """mining_type; the legacy do_neg_mining counts where it is not given. Raises LayerError where they contradict."""
    if not param.HasField("do_neg_mining"):
        return param.mining_type
    if not param.HasField("mining_type"):
        return MAX_NEGATIVE if param.do_neg_mining else NONE
    if param.do_neg_mining != (param.mining_type != NONE):
        name = Param.MiningType.Name(param.mining_type)
        says = f"do_neg_mining: {str(param.do_neg_mining).lower()} and mining_type: {name} contradict each other"
        raise layer.error(says + "; leave do_neg_mining out", "multibox_loss_param.do_neg_mining")
    return param.mining_type


def check_parameters(layer: Layer, param: Param, mining: int) -> None:
    """Raises LayerError for parameters that do not go together."""
    agnostic, background = param.map_object_to_agnostic, param.background_label_id
    wrong = [
        (not param.num_classes, "num_classes", "needs num_classes > 0"),
        (
            param.conf_loss_type == Param.SOFTMAX and background >= param.num_classes,
            "background_label_id",
            f"with SOFTMAX, background_label_id must be below num_classes {param.num_classes}, got {background}",
        ),
        (
            agnostic and (param.num_classes != 2 or background != 0),
            "map_object_to_agnostic",
            f"map_object_to_agnostic needs num_classes 2 and background_label_id 0, got {param.num_classes} and {background}",
        ),
        (mining != NONE and not param.share_location, "share_location", "mining needs share_location: true"),
        (
            mining == MAX_NEGATIVE and not param.neg_pos_ratio > 0,
            "neg_pos_ratio",
            f"neg_pos_ratio must be > 0, got {param.neg_pos_ratio:g}",
        ),
        (
            mining == HARD_EXAMPLE and param.sample_size < 1,
            "sample_size",
            f"sample_size must be > 0, got {param.sample_size}",
        ),
    ]
    for is_wrong, field, message in wrong:
        if is_wrong:
            raise layer.error(message, f"multibox_loss_param.{field}")
