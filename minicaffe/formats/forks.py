"""The forks of Caffe whose fields minicaffe's schema lacks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# A plain name is a field of any message; "Message.field" is a field of that message.
_FIELDS = {
    "Intel Caffe": """LayerParameter.engine NetParameter.engine DropoutParameter.engine PoolingParameter.avg_include_pad
        multinode mn_activation_param mn_grad_compress_param spatial_dropout_param
        quantization_param region_loss_param eval_detection_param batch_reduction_param split_param box_data_param
        random_resize_param random_aspect_ratio_param fusion_type bn_stats_batch_size""",
    "NVIDIA Caffe": """forward_type backward_type forward_math backward_math LayerParameter.debug cudnn_math_override
        default_forward_type default_backward_type default_forward_math default_backward_math global_grad_scale
        default_conv_algos_override reduce_buckets store_blobs_in_old_format eltwise_mem_sharing
        LossParameter.label_smoothing cudnn_convolution_algo_seeker conv_algos_override DataParameter.threads
        DataParameter.parser_threads DataParameter.cache DataParameter.shuffle detectnet_groundtruth_param
        detectnet_augmentation_param TransformationParameter.use_gpu_transform TransformationParameter.random_seed
        img_rand_resize_lower img_rand_resize_upper SolverParameter.min_lr rampup_lr rampup_interval larc larc_policy
        larc_turbo local_lr_auto local_gw_ratio""",
    "Deformable R-FCN": "modulated_deformable_convolution_param",
    "SegNet": """dense_image_data_param weight_by_label_freqs LossParameter.class_weighting sample_weights_test""",
    "DeepLab": """PoolingParameter.hole domain_transform_param dense_crf_param densecrf_param mat_read_param
        mat_write_param unique_label_param adaptive_bias_channel_param""",
    "CRF-RNN": "multi_stage_meanfield_param",
    "FlowNet": """correlation_param flow_warp_param resample_param downsample_param augmentation_param coeff_schedule_param
        l1_loss_param lpq_loss_param black_augmentation_param reader_param writer_param mean_param accum_param
        reshape_every_iter""",
    "YOLO for Caffe (eric612)": "yolov3_param",
    "OpenPose": "cpm_transform_param im_resize_param imresize_param op_transform_param LayerParameter.nms_param",
    "MS-CNN": """box_output_param box_group_output_param detection_group_accuracy_param image_gt_data_param
        bbox_reg_param decode_bbox_param""",
    "caffe-face (center loss)": "center_loss_param",
    "SphereFace": "margin_inner_product_param",
    "NormFace and AM-Softmax": "label_specific_add_param",
    "CTC and LSTM forks (CRNN)": "warp_ctc_loss_param lstm_param",
    "spatial transformer forks": "st_param",
    "C3D": "convolution3d_param pooling3d_param",
    "focal loss forks": "focal_loss_param",
}
_FORK_OF = {name: fork for fork, names in _FIELDS.items() for name in names.split()}


class Effect(Enum):
    """What a fork's field means here."""

    HONOURED = "honoured"
    NONE = "without effect on the numbers"
    NOT_BUILT = "changes the numbers, and is not built"


@dataclass(frozen=True)
class ForkField:
    """A field that BVLC Caffe lacks. sentence: what it does, as in "rounds the pooled size down"; harmless: the values, as a
    prototxt writes them, that compute what the field's absence does."""

    message: str
    name: str
    forks: tuple[str, ...]
    effect: Effect
    sentence: str = ""
    harmless: tuple[str, ...] = ()


def fork_field(message: str, name: str) -> ForkField | None:
    """The field of this message; None if no known fork has it."""
    fork = fork_of(message, name)
    return ForkField(message, name, (fork,), Effect.NOT_BUILT) if fork else None


def fork_of(message: str, name: str) -> str:
    """The fork that has this field in this message; "" if unknown."""
    return _FORK_OF.get(f"{message}.{name}") or _FORK_OF.get(name, "")
