"""The prototxts of a small net of each family of detectors."""

from __future__ import annotations

# The one prior is 2 x 2 pixels at the middle of the 4 x 6 input: from 1/3 to 2/3 of its width, 1/4 to 3/4 of its height.
SSD = """
name: "ssd" input: "data" input_shape { dim: 1 dim: 3 dim: 4 dim: 6 }
layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { global_pooling: true pool: AVE } }
layer { name: "loc" type: "InnerProduct" bottom: "map" top: "loc" inner_product_param { num_output: 4 } }
layer { name: "conf" type: "InnerProduct" bottom: "map" top: "conf" inner_product_param { num_output: 3 } }
layer { name: "prior" type: "PriorBox" bottom: "map" bottom: "data" top: "prior" prior_box_param { min_size: 2 } }
layer { name: "found" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "prior" top: "found"
  detection_output_param { num_classes: 3 confidence_threshold: 0.1 code_type: CENTER_SIZE } }
"""

BLOB = 'input: "data" input_shape { dim: 1 dim: 3 dim: 4 dim: 6 }'
CELLS = """layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { global_pooling: true pool: AVE } }
layer { name: "cells" type: "Convolution" bottom: "map" top: "cells" convolution_param { num_output: 7 kernel_size: 1 } }"""
YOLOS = {
    "caffe-yolov2": """type: "DetectionOutput"
      detection_output_param { side: 1 num_classes: 2 num_box: 1 biases: 0.5 biases: 0.25 }""",
    "YOLOv2": 'type: "YoloDetectionOutput" yolo_detection_output_param { num_classes: 2 num_box: 1 biases: 0.5 biases: 0.25 }',
    "YOLOv3": """type: "Yolov3DetectionOutput" yolov3_detection_output_param { num_classes: 2 num_box: 1 biases: 4 biases: 2
      mask: 0 mask_group_num: 1 anchors_scale: 8 confidence_threshold: 0.6 }""",
}

REFINEDET = f"""{BLOB}
layer {{ name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param {{ global_pooling: true pool: AVE }} }}
layer {{ name: "loc" type: "InnerProduct" bottom: "map" top: "loc" inner_product_param {{ num_output: 8 }} }}
layer {{ name: "conf" type: "InnerProduct" bottom: "map" top: "conf" inner_product_param {{ num_output: 6 }} }}
layer {{ name: "objects" type: "InnerProduct" bottom: "map" top: "objects" inner_product_param {{ num_output: 4 }} }}
layer {{ name: "refine" type: "InnerProduct" bottom: "map" top: "refine" inner_product_param {{ num_output: 8 }} }}
layer {{ name: "prior" type: "PriorBox" bottom: "map" bottom: "data" top: "prior"
  prior_box_param {{ min_size: 2 min_size: 4 }} }}
layer {{ name: "found" type: "DetectionOutput" top: "found"
  bottom: "loc" bottom: "conf" bottom: "prior" bottom: "objects" bottom: "refine"
  detection_output_param {{ num_classes: 3 confidence_threshold: 0.1 code_type: CENTER_SIZE
    objectness_score: 0.5 }} }}"""

STAGE = """
layer {{ name: "bbox{0}" type: "InnerProduct" bottom: "{1}" top: "bbox{0}" inner_product_param {{ num_output: 8 }} }}
layer {{ name: "cls{0}" type: "InnerProduct" bottom: "{1}" top: "cls{0}" inner_product_param {{ num_output: 3 }} }}
layer {{ name: "output_bbox{0}" type: "DecodeBBox" bottom: "bbox{0}" bottom: "{1}" top: "output_bbox{0}" }}
layer {{ name: "cls_prob{0}" type: "Softmax" bottom: "cls{0}" top: "cls_prob{0}" }}
"""
CASCADE = (
    """input: "data" input_shape { dim: 1 dim: 3 dim: 32 dim: 32 }
    layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { global_pooling: true pool: AVE } }
    layer { name: "first" type: "InnerProduct" bottom: "map" top: "first" inner_product_param { num_output: 5 } }"""
    + STAGE.format("_1st", "first")
    + """layer { name: "second" type: "DecodeBBox" bottom: "bbox_1st" bottom: "first" top: "second" }"""
    + STAGE.format("_2nd", "second")
    + """layer { name: "avg" type: "Eltwise" bottom: "cls_prob_1st" bottom: "cls_prob_2nd" top: "cls_prob_2nd_avg"
      eltwise_param { coeff: 0.5 coeff: 0.5 } }"""
)

CTPN = """
input: "data" input_shape { dim: 1 dim: 3 dim: 32 dim: 64 } input: "im_info" input_shape { dim: 1 dim: 3 }
layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { pool: AVE kernel_size: 16 stride: 16 } }
layer { name: "score" type: "Convolution" bottom: "map" top: "score" convolution_param { num_output: 20 kernel_size: 1 } }
layer { name: "move" type: "Convolution" bottom: "map" top: "move" convolution_param { num_output: 20 kernel_size: 1 } }
layer { name: "proposal" type: "Python" bottom: "score" bottom: "move" bottom: "im_info" top: "rois" top: "scores"
  python_param { module: "layers.text_proposal_layer" layer: "ProposalLayer" param_str: "'feat_stride': 16" } }
"""


def module(number: int) -> str:
    """Return a module of stride 4, 8 or 16, named as in SSH's prototxt."""
    m, stride = f"m{number}@ssh", 2 ** (number + 1)
    return f"""
layer {{ name: "{m}" type: "Pooling" bottom: "data" top: "{m}"
  pooling_param {{ pool: AVE kernel_size: {stride} stride: {stride} }} }}
layer {{ name: "{m}_score" type: "Convolution" bottom: "{m}" top: "{m}_score" convolution_param {{ num_output: 4 kernel_size: 1
  weight_filler {{ type: "gaussian" std: 0.02 }} }} }}
layer {{ name: "{m}_move" type: "Convolution" bottom: "{m}" top: "{m}_move" convolution_param {{ num_output: 8 kernel_size: 1
  weight_filler {{ type: "gaussian" std: 0.004 }} }} }}
layer {{ name: "{m}_two" type: "Reshape" bottom: "{m}_score" top: "{m}_two"
  reshape_param {{ shape {{ dim: 0 dim: 2 dim: -1 dim: 0 }} }} }}
layer {{ name: "{m}_prob" type: "Softmax" bottom: "{m}_two" top: "{m}_prob" }}
layer {{ name: "{m}_four" type: "Reshape" bottom: "{m}_prob" top: "{m}_four"
  reshape_param {{ shape {{ dim: 0 dim: 4 dim: -1 dim: 0 }} }} }}
layer {{ name: "{m}_proposal" type: "Python" bottom: "{m}_four" bottom: "{m}_move" bottom: "im_info"
  top: "{m}_boxes" top: "{m}_cls_prob" python_param {{ module: "SSH.layers.proposal_layer" layer: "ProposalLayer"
  param_str: "{{'feat_stride': {stride}, 'scales': [{number},{2 * number}], 'ratios':[1,]}}" }} }}"""


def joined(top: str) -> str:
    bottoms = " ".join(f'bottom: "m{number}@{top}"' for number in (1, 2, 3))
    return f'\nlayer {{ name: "{top}" type: "Concat" {bottoms} top: "{top}" concat_param {{ axis: 0 }} }}'


INPUTS = 'input: "data" input_shape { dim: 1 dim: 3 dim: 32 dim: 32 } input: "im_info" input_shape { dim: 1 dim: 3 }'
SSH = INPUTS + "".join(map(module, (3, 2, 1))) + joined("ssh_cls_prob") + joined("ssh_boxes")


def pooled(cell: int, channels: int, top: str = "cells", kernel: int = 0) -> str:
    """Return the mean of each cell, and a 1x1 convolution."""
    return f"""layer {{ name: "map" type: "Pooling" bottom: "data" top: "map"
      pooling_param {{ pool: AVE kernel_size: {kernel or cell} stride: {cell} }} }}
    layer {{ name: "{top}" type: "Convolution" bottom: "map" top: "{top}"
      convolution_param {{ num_output: {channels} kernel_size: 1 }} }}"""


def reshaped(count: int) -> str:
    return f"""layer {{ name: "flat" type: "Reshape" bottom: "cells" top: "flat"
      reshape_param {{ axis: 1 shape {{ dim: {count} }} }} }}"""


MSCNN = (
    pooled(16, 6)
    + """
layer { name: "proposals" type: "BoxOutput" bottom: "cells" top: "proposals" top: "proposals_score"
  box_output_param { fg_thr: -5 iou_thr: 0.65 nms_type: "IOU" field_w: 16 field_h: 16 downsample_rate: 16
    max_nms_num: 9 max_post_nms_num: 9 min_size: 1 } }
layer { name: "cls_pred" type: "InnerProduct" bottom: "proposals" top: "cls_pred" inner_product_param { num_output: 2 } }
layer { name: "bbox_pred" type: "InnerProduct" bottom: "proposals" top: "bbox_pred" inner_product_param { num_output: 8 } }"""
)


def squeeze_det(cell: int, anchors: int, classes: int, cells: int, kernel: int = 0) -> str:
    first, second = anchors * classes, anchors * (classes + 1)
    return (
        pooled(cell, anchors * (classes + 5), kernel=kernel)
        + f"""
    layer {{ name: "permute" type: "Permute" bottom: "cells" top: "last"
      permute_param {{ order: 0 order: 2 order: 3 order: 1 }} }}
    layer {{ name: "slice" type: "Slice" bottom: "last" top: "classes" top: "sure" top: "deltas"
      slice_param {{ axis: 3 slice_point: {first} slice_point: {second} }} }}
    layer {{ name: "rows" type: "Reshape" bottom: "classes" top: "rows"
      reshape_param {{ shape {{ dim: 0 dim: {cells * anchors} dim: {classes} }} }} }}
    layer {{ name: "softmax" type: "Softmax" bottom: "rows" top: "class_scores" softmax_param {{ axis: 2 }} }}
    layer {{ name: "sigmoid" type: "Sigmoid" bottom: "sure" top: "conf_scores" }}"""
    )


ULTRA_FACE = """
input: "input" input_shape { dim: 1 dim: 3 dim: 24 dim: 40 }
layer { name: "map" type: "Pooling" bottom: "input" top: "map" pooling_param { global_pooling: true pool: AVE } }
layer { name: "conf" type: "InnerProduct" bottom: "map" top: "conf" inner_product_param { num_output: 128 } }
layer { name: "loc" type: "InnerProduct" bottom: "map" top: "loc" inner_product_param { num_output: 256 } }
layer { name: "pairs" type: "Reshape" bottom: "conf" top: "pairs" reshape_param { shape { dim: 0 dim: 64 dim: 2 } } }
layer { name: "boxes" type: "Reshape" bottom: "loc" top: "boxes" reshape_param { shape { dim: 0 dim: 64 dim: 4 } } }
layer { name: "scores" type: "Softmax" bottom: "pairs" top: "scores" softmax_param { axis: 2 } }
"""
"""64 priors: 3 at each of 3 x 5 cells of 8 pixels, 2 at 2 x 3 of 16, 2 at 1 x 2 of 32, 3 at one of 64."""


PNET = """
input: "data" input_dim: 1 input_dim: 3 input_dim: 12 input_dim: 12
layer { name: "score" type: "Convolution" bottom: "data" top: "score"
  convolution_param { num_output: 2 kernel_size: 12 stride: 2 } }
layer { name: "move" type: "Convolution" bottom: "data" top: "move"
  convolution_param { num_output: 4 kernel_size: 12 stride: 2 } }
layer { name: "prob1" type: "Softmax" bottom: "score" top: "prob1" }
"""


def refiner(side: int, more: str = "") -> str:
    """R-Net, or with more O-Net."""
    return f"""
input: "data" input_dim: 1 input_dim: 3 input_dim: {side} input_dim: {side}
layer {{ name: "score" type: "InnerProduct" bottom: "data" top: "score" inner_product_param {{ num_output: 2 }} }}
layer {{ name: "move" type: "InnerProduct" bottom: "data" top: "move" inner_product_param {{ num_output: 4 }} }}
{more}
layer {{ name: "prob1" type: "Softmax" bottom: "score" top: "prob1" }}
"""


LANDMARKS = """
layer { name: "points" type: "InnerProduct" bottom: "data" top: "points" inner_product_param { num_output: 10 } }"""
MTCNN = {"det1.prototxt": PNET, "det2.prototxt": refiner(24), "det3.prototxt": refiner(48, LANDMARKS)}
"""The texts of the three files."""

DETECT_NET = """
name: "DetectNet"
layer { name: "deploy_data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 48 dim: 64 } }
  include: { phase: TEST not_stage: "val" } }
layer { name: "deploy_transform" type: "Power" bottom: "data" top: "transformed_data" power_param { shift: -127 }
  include: { phase: TEST not_stage: "val" } }
layer { name: "pool" type: "Pooling" bottom: "transformed_data" top: "pool"
  pooling_param { pool: AVE kernel_size: 16 stride: 16 } }
layer { name: "cvg/classifier" type: "Convolution" bottom: "pool" top: "cvg/classifier"
  convolution_param { num_output: 2 kernel_size: 1 } }
layer { name: "coverage/sig" type: "Sigmoid" bottom: "cvg/classifier" top: "coverage" }
layer { name: "bbox/regressor" type: "Convolution" bottom: "pool" top: "bboxes"
  convolution_param { num_output: 4 kernel_size: 1 } }
layer { type: 'Python' name: 'cluster' bottom: 'coverage' bottom: 'bboxes' top: 'bbox-list-class0' top: 'bbox-list-class1'
  python_param { module: 'caffe.layers.detectnet.clustering' layer: 'ClusterDetections'
                 param_str : '64, 48, 16, 0.6, 2, 2, 22, 2' }
  include: { phase: TEST } }
"""
"""The end of DIGITS' DetectNet, of two classes, with a larger eps: boxes of all cells become one."""
