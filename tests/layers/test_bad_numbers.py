"""Numbers of a prototxt or a bottom that are infinite, NaN, too large or out of range, in layers of forks."""

from __future__ import annotations

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.mode import TRAIN

GENERATE = 'type: "GenerateAugmentationParameters" '
SIZES = "augment_during_test: true crop_height: 4 crop_width: 5 bottomheight: 8 bottomwidth: 9"
RESCALE = 'type: "LabelSpecificRescale" label_specific_rescale_param { positive_weight_base: 1 '
TARGETS = 'type: "ProposalTarget" proposal_target_param { cls_num: 3 num_img_per_batch: 1 '
GROUPS = "{ cls_num: 2 field_w: 8 field_h: 9 stride: 4 "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{GENERATE} augmentation_param {{ {SIZES} rotate {{ spread: inf }} }}", "spread must be finite, got inf"),
        (f"{GENERATE} augmentation_param {{ {SIZES} zoom {{ mean: nan }} }}", "mean must be finite, got nan"),
        (
            f"{GENERATE} augmentation_param {{ {SIZES} }} coeff_schedule_param {{ half_life: -1 }}",
            "half_life must be >= 0, got -1",
        ),
    ],
)
def test_generators_take_finite_numbers(text: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, np.zeros((2, 42, 1, 1)))


def test_a_generator_may_grow_without_bound() -> None:
    """exp(1000) is infinite, also where it is rounded."""
    grown = 'brightness { rand_type: "gaussian" mean: 1000 spread: 0 exp: true discretize: true }'
    (row,) = LayerCase(f"{GENERATE} augmentation_param {{ {SIZES} {grown} }}", np.zeros((1, 42, 1, 1))).forward()
    assert np.isinf(row).sum() == 1


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_coefficients_that_are_not_finite_give_nan(value: float) -> None:
    bad, good = np.full((1, 42, 1, 1), value), np.zeros((1, 42, 1, 1))
    flow = LayerCase(
        'type: "FlowAugmentation" augmentation_param { crop_height: 4 crop_width: 5 }', np.ones((1, 2, 6, 7)), bad, good
    )
    image = LayerCase(
        'type: "DataAugmentation" augmentation_param { crop_height: 4 crop_width: 5 '
        "chromatic_eigvec: [1, 0, 0, 0, 1, 0, 0, 0, 1] }",
        np.ones((1, 3, 6, 7)),
        bad,
    )
    assert all(np.isnan(case.forward()[0]).all() for case in (flow, image))


def test_a_class_that_is_not_finite_is_none() -> None:
    labels, scores, deltas = np.zeros((1, 6, 2, 3)), np.zeros((1, 2, 2, 3)), np.zeros((1, 4, 2, 3))
    labels[0, 0, 1, 2] = np.inf
    for text in (
        f'type: "DetectionGroupLoss" detection_group_loss_param {GROUPS} batch_size: 4 }}',
        f'type: "DetectionGroupAccuracy" detection_group_accuracy_param {GROUPS} field_whr: 2 field_xyr: 3 }}',
    ):
        with pytest.raises(LayerError, match="inf is no class"):
            LayerCase(text, scores, deltas, labels).forward()
    matches = np.zeros((2, 6))
    matches[:, 0] = 1e30
    with pytest.raises(LayerError, match=r"class 1e\+30 has no deltas"):
        LayerCase('type: "BboxAccuracy"', np.zeros((2, 8)), np.zeros((2, 5)), matches).forward()


def test_the_weight_of_a_label() -> None:
    with pytest.raises(LayerError, match="gamma must be >= 0, got -1"):
        LayerCase(f"{RESCALE} gamma: -1 }}", np.ones((2, 3)), np.zeros(2))
    (y,) = LayerCase(f"{RESCALE} gamma: 1e30 power: -30 }}", np.ones((2, 3)), np.zeros(2), phase=TRAIN).forward()
    assert y.tolist() == [[np.inf, 1, 1]] * 2


@pytest.mark.parametrize("fraction", ["-0.25", "1.5", "inf", "nan"])
def test_a_fraction_of_foreground_is_one(fraction: str) -> None:
    with pytest.raises(LayerError, match="fg_fraction must be from 0 to 1, got"):
        LayerCase(f"{TARGETS} fg_fraction: {fraction} }}", np.zeros((2, 5)), np.zeros((1, 7)), tops=7)


def test_images_without_rois_cost_nothing() -> None:
    text = 'type: "HardMining" hard_mining_param { num_roi_per_image: 2 num_image: 4294967295 }'
    (found,) = LayerCase(text, [1.0, 2.0, 3.0], np.zeros((3, 5))).forward()
    assert found.shape == (3, 5)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_true_label_that_is_not_finite(value: float) -> None:
    scores, through_time, of_sequences = np.zeros((3, 2, 4)), np.ones((3, 2)), np.full((2, 5), value)
    for bottoms, tops in (([scores, of_sequences], 1), ([scores, through_time, value * through_time], 2)):
        case = LayerCase('type: "CTCGreedyDecoder"', *bottoms, tops=tops)
        with pytest.raises(LayerError, match=f"{value:g} is no label"):
            case.forward()
