"""Bottoms without items, channels or features: an empty top and gradient, or an error that says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe.errors import LayerError

EMPTY: dict[str, tuple[str, list[tuple[int, ...]], int]] = {
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
    "Mask": ("", [(1, 0, 4, 5), (1, 1, 4, 5)], 1),
    "SmoothL1Loss": ("", [(5,), (5,)], 2),
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


def test_a_vector_s_losses_are_those_of_its_items() -> None:
    _, losses = LayerCase('type: "SmoothL1Loss"', [0.5, 3.0], [0.0, 1.0], tops=2).forward()
    assert losses.ravel().tolist() == [0.125, 1.5]
