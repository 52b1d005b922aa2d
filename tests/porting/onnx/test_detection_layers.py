"""Layers of detection nets in onnxruntime, compared with minicaffe: ROI layers on various rois, proposals, SSD's layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from first import first
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from onnx_case import Arrays, check, net_of

from minicaffe import TEST, Net
from minicaffe.data.settings import DetectionSettings, TestSettings
from minicaffe.formats.prototxt import parse_net

ROI = {
    "pooling": 'type: "ROIPooling" roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 }',
    "align_mean": 'type: "ROIAlign" roi_align_param { pool: AVE pooled_h: 3 pooled_w: 2 spatial_scale: 0.1 sampling_ratio: 2 }',
    "align_mean_grid": 'type: "ROIAlign" roi_align_param { pool: AVE pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 }',
    "align_aligned": 'type: "ROIAlign" roi_align_param { pool: AVE pooled_h: 2 pooled_w: 3 spatial_scale: 0.1 aligned: true }',
    "align_max": 'type: "ROIAlign" roi_align_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 }',
    "warping": 'type: "ROIWarping" roi_warping_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 }',
    "deformable_still": 'type: "DeformablePSROIPooling" deformable_psroi_pooling_param { output_dim: 2 group_size: 3 '
    "spatial_scale: 0.0625 sample_per_part: 2 no_trans: true }",
    "pooling_widened": 'type: "ROIPooling" roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 pad_ratio: 0.25 }',
    "align_grid": 'type: "ROIAlign" roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 pad_ratio: 0 }',
    "align_grid_widened": 'type: "ROIAlign" roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.1 pad_ratio: 0.3 }',
    "ps_pooling": 'type: "PSROIPooling" psroi_pooling_param { output_dim: 2 group_size: 3 spatial_scale: 0.0625 }',
    "ps_align": 'type: "PSROIAlign" psroi_align_param { output_dim: 2 group_size: 3 spatial_scale: 0.0625 sample_num: 2 }',
}


def block(inside: str, bottoms: tuple[str, ...] = ("x", "rois"), tops: tuple[str, ...] = ("y",)) -> str:
    names = " ".join([*(f'bottom: "{b}"' for b in bottoms), *(f'top: "{t}"' for t in tops)])
    return f'layer {{ name: "layer" {names} {inside} }}'


def arrays(seed: int, images: int, size: tuple[int, int], rois: int) -> Arrays:
    """A map of 18 channels, and rois: inside, across the edges, outside, of no size, reversed, on half pixels."""
    random = np.random.default_rng(seed)
    corners = random.uniform(-60, [[size[1] * 16 + 60, size[0] * 16 + 60]], (rois, 2, 2))
    low, high = corners.min(axis=1), corners.max(axis=1)
    boxes = np.concatenate([low, high], axis=1)
    boxes[1::5, 2:] = boxes[1::5, :2]
    boxes[2::5] = np.round(boxes[2::5] / 8) * 8
    boxes[3::7] = boxes[3::7, [2, 3, 0, 1]]
    index = random.integers(0, images, (rois, 1))
    x = random.standard_normal((images, 18, *size)).astype(np.float32)
    return {"x": x, "rois": np.concatenate([index, boxes], axis=1).astype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROI)
def test_roi_layers_at_any_size_and_number_of_rois(name: str, tmp_path: Path) -> None:
    given = [arrays(0, 2, (9, 11), 20), arrays(1, 1, (14, 8), 13), arrays(2, 3, (6, 7), 0)]
    dims = check(tmp_path, block(ROI[name]), *given, rtol=1e-4, atol=1e-5)
    assert dims["x"] == ["x_n", 18, "x_h", "x_w"] and dims["rois"] == ["rois_n", 5]
    assert dims["y"][0] == "rois_n"


@pytest.mark.parametrize("name", first(1, ["pooling", "ps_pooling", "align_max"]))
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), height=st.integers(1, 12), width=st.integers(1, 12))
def test_the_bins_are_caffes(name: str, tmp_path: Path, seed: int, height: int, width: int) -> None:
    check(tmp_path, block(ROI[name]), arrays(seed, 2, (height, width), 30), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classes", [1, 2])
def test_deformable_psroi_pooling(classes: int, tmp_path: Path) -> None:
    text = ROI["deformable_still"].replace("no_trans: true", "part_size: 2 trans_std: 0.25")
    given = [arrays(0, 2, (9, 11), 40), arrays(1, 1, (14, 8), 23), arrays(2, 3, (6, 7), 0)]
    for i, one in enumerate(given):
        shape = (len(one["rois"]), 2 * classes, 2, 2)
        one["trans"] = np.random.default_rng(i).standard_normal(shape).astype(np.float32)
    check(tmp_path, block(text, ("x", "rois", "trans")), *given, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("param", ["pad: 1", "stride: 2 dilation: 2 group: 2 bias_term: false"])
def test_deformable_convolution(param: str, version: int, tmp_path: Path) -> None:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    text = f"num_output: 6 kernel_size: 3 deformable_group: 2 {param} {fillers}"
    given = []
    for i, (height, width) in enumerate(((7, 9), (11, 8)) if param == "pad: 1" else ((7, 9),)):  # else the axes are not free
        random = np.random.default_rng(i)
        output = (height, width) if param == "pad: 1" else ((height - 5) // 2 + 1, (width - 5) // 2 + 1)
        x, offset = random.standard_normal((2, 4, height, width)), 2 * random.standard_normal((2, 36, *output))
        given.append({"x": x.astype(np.float32), "offset": offset.astype(np.float32)})
        if version == 2:
            given[i]["mask"] = random.standard_normal((2, 18, *output)).astype(np.float32)
    kind = {1: '"DeformableConvolution" deformable', 2: '"ModulatedDeformableConvolution" modulated_deformable'}[version]
    layer = f"type: {kind}_convolution_param {{ {text} }}"
    check(tmp_path, block(layer, tuple(given[0])), *given, rtol=1e-4, atol=1e-4)


def test_rois_of_four_axes(tmp_path: Path) -> None:
    given = arrays(3, 2, (9, 11), 12)
    given["rois"] = given["rois"].reshape(-1, 5, 1, 1)
    for name in ("pooling", "align_mean", "ps_pooling"):
        check(tmp_path, block(ROI[name]), given, rtol=1e-4, atol=1e-5)


def test_a_third_bottom_is_the_scale(tmp_path: Path) -> None:
    given = arrays(4, 2, (9, 11), 12) | {"scale": np.array([-0.0625], np.float32)}
    check(tmp_path, block(ROI["align_max"], ("x", "rois", "scale")), given, rtol=1e-4, atol=1e-5)


# Proposal

RPN = {
    "built-in": 'type: "Proposal" python_param {{ param_str: "{}" }}',
    "python": "type: 'Python' python_param {{ module: 'rpn.proposal_layer' layer: 'ProposalLayer' param_str: \"{}\" }}",
}


def rpn_arrays(seed: int, size: tuple[int, int], anchors: int = 9) -> Arrays:
    random = np.random.default_rng(seed)
    info = np.array([[size[0] * 16, size[1] * 16 - 5, 1.5]], np.float32)
    return {
        "scores": random.random((1, 2 * anchors, *size), np.float32),
        "deltas": (random.standard_normal((1, 4 * anchors, *size)) * 0.3).astype(np.float32),
        "im_info": info,
    }


@pytest.mark.parametrize("kind", RPN)
def test_proposals_are_the_same_in_the_same_order(kind: str, tmp_path: Path) -> None:
    text = block(RPN[kind].format("'feat_stride': 16"), ("scores", "deltas", "im_info"), ("rois", "kept_scores"))
    dims = check(tmp_path, text, rpn_arrays(0, (14, 20)), rpn_arrays(1, (9, 31)), rpn_arrays(2, (1, 1)), atol=1e-3)
    assert dims["scores"] == [1, 18, "scores_h", "scores_w"] and dims["rois"] == ["rois_n", 5]
    assert dims["kept_scores"] == ["kept_scores_n", 1] and dims["im_info"] == [1, 3]


def test_equal_scores_keep_their_order(tmp_path: Path) -> None:
    given = rpn_arrays(3, (12, 10))
    given["scores"] = np.round(given["scores"] * 4) / 4
    text = block(RPN["built-in"].format("'feat_stride': 16"), ("scores", "deltas", "im_info"), ("rois",))
    check(tmp_path, text, given, atol=1e-3)


@pytest.mark.parametrize(("before", "after"), [(50, 10), (0, 0), (200, 0)])
def test_proposal_limits_are_the_settings(before: int, after: int, tmp_path: Path) -> None:
    limits = TestSettings(rpn_pre_nms_top_n=before, rpn_post_nms_top_n=after, rpn_min_size=40)
    layer = RPN["built-in"].format("{'feat_stride': 16, 'scales': [4, 8]}")
    text, given = block(layer, ("scores", "deltas", "im_info"), ("rois",)), rpn_arrays(4, (12, 10), 6)
    check(tmp_path, text, given, atol=1e-3, net=net_of(text, given, settings=DetectionSettings(test=limits)))


def test_no_box_is_large_enough(tmp_path: Path) -> None:
    settings = DetectionSettings(test=TestSettings(rpn_min_size=100_000))
    text = block(RPN["built-in"].format("'feat_stride': 16"), ("scores", "deltas", "im_info"), ("rois",))
    given = rpn_arrays(5, (5, 4))
    check(tmp_path, text, given, net=net_of(text, given, settings=settings))


def test_rois_that_layers_read_are_an_output(tmp_path: Path) -> None:
    """And the layers after them run on any number, also none."""
    text = (
        block(RPN["built-in"].format("'feat_stride': 16"), ("scores", "deltas", "im_info"), ("rois",))
        + """
        layer { name: "pool" type: "ROIPooling" bottom: "x" bottom: "rois" top: "p"
                roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.0625 } }
        layer { name: "fc" type: "InnerProduct" bottom: "p" top: "f" inner_product_param { num_output: 6 } }
        layer { name: "shaped" type: "Reshape" bottom: "f" top: "g" reshape_param { shape { dim: -1 dim: 6 dim: 1 dim: 1 } } }
        layer { name: "softmax" type: "Softmax" bottom: "g" top: "prob" }
    """
    )
    sizes = [(14, 20), (9, 31)]
    given = [
        rpn_arrays(i, size) | {"x": np.random.default_rng(9).random((1, 3, *size), np.float32)} for i, size in enumerate(sizes)
    ]
    none = given[0] | {"deltas": given[0]["deltas"] - 20}  # all boxes smaller than the least
    dims = check(tmp_path, text, *given, none, rtol=1e-4, atol=1e-3)
    assert dims["prob"] == ["rois_n", 6, 1, 1] and dims["rois"] == ["rois_n", 5]


# SSD

PRIORS = {
    "plain": "min_size: 30 max_size: 60 aspect_ratio: 2 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2",
    "clipped": "min_size: 30.7 min_size: 50 aspect_ratio: 3 flip: false clip: true offset: 0.3",
    "given": "min_size: 30 img_h: 200 img_w: 240 step_h: 14 step_w: 17",
}


@pytest.mark.parametrize("name", PRIORS)
def test_prior_boxes(name: str, tmp_path: Path) -> None:
    text = block(f'type: "PriorBox" prior_box_param {{ {PRIORS[name]} }}', ("x", "data"))
    random = np.random.default_rng(0)
    given = [
        {"x": random.random((1, 3, *s)), "data": random.random((1, 3, *t))}
        for s, t in (((5, 7), (100, 130)), ((9, 4), (211, 90)))
    ]
    check(tmp_path, text, *given, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("fork", "param"),
    [
        ("faceboxes", "min_size: 32 min_size: 64 min_size: 128 step: 32 offset: 0.5 variance: 0.1"),
        ("textboxes", "min_size: 30.5 max_size: 60 aspect_ratio: 2 clip: true"),
        ("", "min_size: 20 aspect_ratio: 3 offset_h: 0.25 offset_h: 0.75 offset_w: 0.5 offset_w: 0.125"),
    ],
)
def test_prior_boxes_at_several_places_in_a_cell(fork: str, param: str, tmp_path: Path) -> None:
    layer = f'layer {{ name: "layer" type: "PriorBox" bottom: "x" bottom: "data" top: "y" prior_box_param {{ {param} }} }}'
    random = np.random.default_rng(0)
    given = [
        {"x": random.random((1, 3, *s)), "data": random.random((1, 3, *t))}
        for s, t in (((3, 7), (96, 224)), ((5, 2), (211, 90)))
    ]
    inputs = "".join(
        f'input: "{name}" input_shape {{ {" ".join(f"dim: {dim}" for dim in array.shape)} }}\n'
        for name, array in given[0].items()
    )
    net = Net(parse_net(inputs + layer), TEST, fork=fork)
    check(tmp_path, layer, *given, rtol=1e-6, atol=1e-7, net=net)


def ssd_arrays(seed: int, images: int, priors: int, classes: int, loc_classes: int, spread: float = 3.0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    low = random.uniform(0, 0.7, (priors, 2))
    boxes = np.concatenate([low, low + random.uniform(0.05, 0.4, (priors, 2))], axis=1)
    scores = np.exp(random.standard_normal((images, priors, classes)) * spread)
    scores /= scores.sum(axis=2, keepdims=True)
    return {
        "loc": (random.standard_normal((images, priors * 4 * loc_classes)) * 0.5).astype(np.float32),
        "conf": scores.reshape(images, -1).astype(np.float32),
        "priors": np.stack([boxes.ravel(), np.full(priors * 4, 0.1)])[None].astype(np.float32),
    }


OUTPUTS = {
    "shared": (1, "num_classes: 4 confidence_threshold: 0.2 keep_top_k: 20 nms_param { nms_threshold: 0.45 top_k: 30 }"),
    "corner": (1, "num_classes: 4 code_type: CORNER confidence_threshold: 0.1 nms_param { nms_threshold: 0.3 }"),
    "corner_size": (1, "num_classes: 4 code_type: CORNER_SIZE keep_top_k: 7 nms_param { nms_threshold: 0.3 top_k: 10 }"),
    "each_class": (
        4,
        "num_classes: 4 share_location: false confidence_threshold: 0.2 keep_top_k: 15 nms_param { nms_threshold: 0.4 }",
    ),
    "background": (1, "num_classes: 4 background_label_id: 2 keep_top_k: 5 nms_param { nms_threshold: 0.5 top_k: 400 }"),
    "in_target": (
        1,
        "num_classes: 4 variance_encoded_in_target: true keep_top_k: 50 nms_param { nms_threshold: 0.3 top_k: 9 }",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTPUTS)
def test_detections_are_the_same_in_the_same_order(name: str, tmp_path: Path) -> None:
    loc_classes, param = OUTPUTS[name]
    param = param if "code_type" in param else f"{param} code_type: CENTER_SIZE"
    text = block(f'type: "DetectionOutput" detection_output_param {{ {param} }}', ("loc", "conf", "priors"))
    given = [ssd_arrays(seed, images, 25, 4, loc_classes) for seed, images in ((0, 3), (1, 1))]
    dims = check(tmp_path, text, *given)
    assert dims["y"] == [1, 1, "y_h", 7] and dims["loc"][0] == "loc_n"


def test_no_detections_are_a_row_for_each_image(tmp_path: Path) -> None:
    param = "num_classes: 4 confidence_threshold: 0.99 keep_top_k: 20 nms_param { nms_threshold: 0.45 top_k: 30 }"
    text = block(f'type: "DetectionOutput" detection_output_param {{ {param} }}', ("loc", "conf", "priors"))
    check(tmp_path, text, *(ssd_arrays(0, images, 25, 4, 1, spread=0.1) for images in (3, 1)))


def test_net_of_gives_batch_norm_a_factor() -> None:
    net = net_of('layer { name: "n" type: "BatchNorm" bottom: "x" top: "y" }', {"x": np.ones((2, 3))})
    assert net.params["n"][2].data[0] == np.float32(1.7)
