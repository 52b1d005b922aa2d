"""Bottoms without items, channels or features: an empty top and gradient, or an error that says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.mode import TRAIN

EMPTY: dict[str, tuple[str, list[tuple[int, ...]], int]] = {
    "Accum": ("accum_param { top_height: 5 top_width: 6 }", [(2, 0, 3, 4)], 1),
    "CenterLoss": ("center_loss_param { num_output: 3 }", [(2, 0), (2,)], 1),
    "CrossConvolution": ("convolution_param { kernel_size: 3 bias_term: false }", [(0, 3, 5, 6), (0, 3, 5, 6)], 1),
    "DetectionGroupLoss": (
        "detection_group_loss_param { cls_num: 3 field_w: 8 field_h: 9 stride: 4 batch_size: 4 }",
        [(0, 3, 2, 5), (0, 4, 2, 5), (0, 6, 2, 5)],
        1,
    ),
    "DetectionLoss": ("detection_loss_param { side: 2 num_class: 3 num_object: 4 }", [(0, 92), (0, 28)], 1),
    "EuclideanLossWithIgnore": ("", [(0, 3), (0, 4)], 1),
    "FlowWarp": ("", [(2, 0, 3, 4), (2, 2, 3, 4)], 1),
    "GeneralContrastiveLoss": ("general_contrastive_loss_param { max_negative_only: true }", [(0, 0), (0,)], 1),
    "GenerateAugmentationParameters": (
        'augmentation_param { mode: "regenerate" crop_height: 4 crop_width: 5 }',
        [(0, 3, 6, 7)],
        1,
    ),
    "InnerProduct": ("inner_product_param { num_output: 3 normalize: true }", [(2, 0)], 1),
    "Local": ("local_param { num_output: 2 kernel_size: 2 }", [(0, 3, 4, 5)], 1),
    "Mask": ("", [(1, 0, 4, 5), (1, 1, 4, 5)], 1),
    "SmoothL1Loss": ("", [(5,), (5,)], 2),
    "SpatialTransformer": ("st_param { output_H: 2 output_W: 3 }", [(0, 3, 4, 5), (0, 6)], 1),
    "Transformer": ("", [(2, 3, 0, 5), (2, 6)], 1),
    "TripletLoss": ("", [(0, 3)] * 3, 1),
    "Warp": ("", [(2, 0, 3, 4), (2, 2, 3, 4)], 1),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_nothing_gives_nothing(kind: str) -> None:
    param, shapes, tops = EMPTY[kind]
    case = LayerCase(f'type: "{kind}" {param}', *(np.zeros(shape) for shape in shapes), tops=tops)
    assert all(not top.any() for top in case.forward())
    assert [diff.shape for diff in case.backward()] == shapes


@pytest.mark.parametrize(
    ("text", "shapes", "tops"),
    [
        ('type: "BboxAccuracy" bbox_reg_param {}', [(0, 8), (0, 5), (0, 6)], [(1, 1, 1, 1)]),
        ('type: "CTCGreedyDecoder"', [(3, 0, 4), (0, 5)], [(1, 2, 1, 1)]),
        ('type: "EvalDetection" eval_detection_param { side: 2 num_class: 3 num_object: 4 }', [(0, 92), (0, 28)], [(0, 67)]),
        (
            'type: "EvalDetection" eval_detection_param { side: 2 num_class: 3 num_object: 1 biases: [1, 2] nms: 0.5 }',
            [(0, 8, 2, 2), (0, 5)],
            [(0, 19)],
        ),
    ],
)
def test_no_image_has_no_rows(text: str, shapes: Sequence[tuple[int, ...]], tops: list[tuple[int, ...]]) -> None:
    case = LayerCase(text, *(np.zeros(shape) for shape in shapes))
    assert [top.shape for top in case.forward()] == tops


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "CrossConvolution" convolution_param { kernel_size: 3 bias_term: false }', [(2, 0, 5, 6)] * 2, "no channels"),
        ('type: "DenseBlock" denseblock_param { numTransition: 2 growthRate: 3 use_BC: true }', [(2, 0, 5, 6)], "no channels"),
        ('type: "InnerDistance" inner_distance_param { num_output: 3 }', [(2, 0)], "no features"),
        ('type: "DecodeBBox"', [(0, 0), (0, 5)], "bottom 0 must have 8 values a roi"),
        ('type: "MarginInnerProduct" margin_inner_product_param { num_output: 3 }', [(2, 0), (2,)], "no features"),
        ('type: "SpatialTransformer" st_param { output_H: 2 }', [(2, 3, 0, 5), (2, 6)], "U must be .* with pixels"),
        (
            'type: "InnerProduct" bottom: "x" bottom: "w" inner_product_param { bias_term: false }',
            [(2, 0), (3, 0)],
            "no inputs",
        ),
    ],
)
def test_an_error_says_what_is_missing(text: str, shapes: Sequence[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))


def test_a_roi_without_overlaps() -> None:
    for rois in (0, 2):
        with pytest.raises(LayerError, match="bottom 2 must have one overlap at least a roi"):
            LayerCase('type: "DecodeBBox"', *(np.zeros((rois, k)) for k in (8, 5, 0)), phase=TRAIN)


@pytest.mark.parametrize("shape", [(2, 0, 4, 5), (2, 3, 4, 5)])
def test_no_channel_leaves_theta_without_a_gradient(shape: tuple[int, ...]) -> None:
    case = LayerCase('type: "SpatialTransformer"', np.ones(shape), np.full((2, 6), 0.5))
    assert case.forward()[0].shape == shape
    assert case.backward(np.ones(shape))[1].any() == bool(shape[1])


def test_items_of_no_numbers_do_not_count() -> None:
    case = LayerCase('type: "EuclideanLossWithIgnore"', np.zeros((2, 3, 0)), np.zeros((2, 4, 0)))
    assert case.forward()[0] == 0
    assert [diff.shape for diff in case.backward(np.array(1.0))] == [(2, 3, 0), (2, 4, 0)]


def test_a_vector_s_losses_are_those_of_its_items() -> None:
    _, losses = LayerCase('type: "SmoothL1Loss"', [0.5, 3.0], [0.0, 1.0], tops=2).forward()
    assert losses.ravel().tolist() == [0.125, 1.5]
