"""MultiBoxLoss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from multi_box_reference import reference_loss
from ssd_reference import made_boxes, priors_blob

from minicaffe.errors import LayerError
from minicaffe.layers.ssd.multi_box import MAX_NEGATIVE, NONE
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

HAND = "num_classes: 3 code_type: CORNER "


def text(inside: str, loss: str = "", more: str = "") -> str:
    return f'type: "MultiBoxLoss" multibox_loss_param {{ {inside} }} loss_param {{ {loss} }} {more}'


def truth_rows(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, float).reshape(1, 1, -1, 8)


def hand_case(inside: str = "", loss: str = "", more: str = "", dtype: type = np.float64, images: int = 1) -> LayerCase:
    """Three priors in a row; the true box of class 2 is the first prior, moved by half a variance in each corner."""
    priors = np.array([[0.0, 0, 0.2, 0.2], [0.4, 0, 0.6, 0.2], [0.8, 0, 1, 0.2]])
    conf = np.tile([[0.0, 0, 0, 2, 0, 0, 0, 0, 0]], (images, 1))
    rows = truth_rows((0, 2, 0, 0.05, 0.05, 0.25, 0.25, 0))
    return LayerCase(
        text(HAND + inside, loss, more), np.zeros((images, 12)), conf, priors_blob(priors), rows, phase=TRAIN, dtype=dtype
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """loc: 4 * 0.5 * 0.5^2. conf: log 3 for the match; the two negatives are log(1 + 2 e^-2) and log 3."""
    case = hand_case(dtype=dtype)
    (loss,) = case.forward()
    expected = 0.5 + math.log(3) + math.log(1 + 2 * math.exp(-2)) + math.log(3)
    assert loss.shape == () and loss.dtype == dtype
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    dloc, dconf, dpriors, drows = case.backward(np.array(2.0))
    np.testing.assert_allclose(dloc, [[-1] * 4 + [0] * 8], rtol=1e-6)
    e = math.exp(2) + 2
    two = [2 * (math.exp(2) / e - 1), 2 / e, 2 / e]
    np.testing.assert_allclose(dconf, [[2 / 3, 2 / 3, -4 / 3, *two, -4 / 3, 2 / 3, 2 / 3]], rtol=1e-5)
    assert not dpriors.any() and not drows.any()


def test_the_harder_negative_is_mined_first() -> None:
    case = hand_case("neg_pos_ratio: 1")
    np.testing.assert_allclose(case.forward()[0], 0.5 + 2 * math.log(3))
    assert not case.backward(np.array(1.0))[1][0, 3:6].any()


def test_weights_and_propagate_down() -> None:
    whole = 0.5 + 2 * math.log(3) + math.log(1 + 2 * math.exp(-2))
    np.testing.assert_allclose(hand_case("loc_weight: 4").forward()[0], whole + 1.5)
    flags = "propagate_down: true propagate_down: false propagate_down: false propagate_down: false"
    np.testing.assert_allclose(hand_case(more=flags).forward()[0], 0.5)


@pytest.mark.parametrize(
    ("loss", "divisor"), [("", 1), ("normalization: FULL", 6), ("normalization: BATCH_SIZE", 2), ("normalize: false", 2)]
)
def test_normalization(loss: str, divisor: int) -> None:
    """Of two images the second has no true box: with mining it adds nothing."""
    (plain,) = hand_case(loss="normalization: NONE", images=2).forward()
    np.testing.assert_allclose(hand_case(loss=loss, images=2).forward()[0], plain / divisor)


def test_without_true_boxes_nothing_is_mined_and_all_is_background() -> None:
    rows = truth_rows((-1, -1, -1, -1, -1, -1, -1, -1))
    for mining, expected in (("MAX_NEGATIVE", 0.0), ("HARD_EXAMPLE", 0.0), ("NONE", 6 * math.log(3))):
        blob = priors_blob(made_boxes(3))
        case = LayerCase(text(f"num_classes: 3 mining_type: {mining}"), np.zeros((2, 12)), np.zeros((2, 9)), blob, rows)
        np.testing.assert_allclose(case.forward()[0], expected)
        assert np.isfinite(case.backward(np.array(1.0))[1]).all()


def test_legacy_do_neg_mining() -> None:
    assert vars(hand_case("do_neg_mining: false").layer)["mining"] == NONE
    assert vars(hand_case("do_neg_mining: true").layer)["mining"] == MAX_NEGATIVE
    assert vars(hand_case("do_neg_mining: false mining_type: NONE").layer)["mining"] == NONE


def made_case(inside: str, seed: int, images: int = 2, priors: int = 7, truths: int = 4) -> tuple[LayerCase, dict[str, object]]:
    """Random boxes, of which some lie partly outside, in a batch of images; and what the plain loops say."""
    param = caffe_pb2.MultiBoxLossParameter()
    text_format.Merge(inside, param)
    random = np.random.default_rng(seed)
    boxes = made_boxes(priors, seed) * 1.3 - 0.1
    variances = random.uniform(0.1, 0.4, (priors, 4))
    slots = 1 if param.share_location else param.num_classes
    loc, conf = random.normal(size=(images, priors, slots, 4)), random.normal(size=(images, priors, param.num_classes))
    true = made_boxes(truths, seed + 50)
    classes = [k for k in range(max(param.num_classes, 3)) if k != param.background_label_id]
    rows = [[random.integers(images), random.choice(classes), 0, *box, random.integers(2)] for box in true]
    rows.append([-1] * 8)
    loss = "propagate_down: true propagate_down: true propagate_down: false propagate_down: false loss_weight: 1"
    flat = (loc.reshape(images, -1), conf.reshape(images, -1))
    case = LayerCase(text(inside, "normalization: NONE", loss), *flat, priors_blob(boxes, variances), truth_rows(*rows))
    mining = vars(case.layer)["mining"]
    return case, reference_loss(loc, conf, boxes, variances, rows, param, mining)


FORMS = [
    "num_classes: 3",
    "num_classes: 3 code_type: CENTER_SIZE overlap_threshold: 0.2 neg_overlap: 0.2",
    "num_classes: 3 code_type: CORNER_SIZE match_type: BIPARTITE loc_loss_type: L2",
    "num_classes: 3 code_type: CENTER_SIZE encode_variance_in_target: true overlap_threshold: 0.1",
    "num_classes: 3 code_type: CORNER encode_variance_in_target: true loc_loss_type: L2 mining_type: NONE",
    "num_classes: 3 conf_loss_type: LOGISTIC overlap_threshold: 0.2",
    "num_classes: 3 conf_loss_type: LOGISTIC mining_type: NONE overlap_threshold: 0.2",
    "num_classes: 3 conf_loss_type: LOGISTIC background_label_id: 3",
    "num_classes: 4 background_label_id: 2 overlap_threshold: 0.2 neg_pos_ratio: 0.7",
    "num_classes: 3 code_type: CENTER_SIZE use_prior_for_matching: false overlap_threshold: 0.1",
    "num_classes: 3 share_location: false mining_type: NONE overlap_threshold: 0.1",
    "num_classes: 3 share_location: false mining_type: NONE use_prior_for_matching: false code_type: CENTER_SIZE",
    "num_classes: 3 share_location: false mining_type: NONE use_prior_for_matching: false conf_loss_type: LOGISTIC",
    "num_classes: 3 mining_type: HARD_EXAMPLE sample_size: 3 code_type: CENTER_SIZE overlap_threshold: 0.1",
    "num_classes: 3 mining_type: HARD_EXAMPLE sample_size: 5 nms_param { nms_threshold: 0.2 } use_prior_for_nms: true",
    "num_classes: 3 code_type: CENTER_SIZE nms_param { nms_threshold: 0.1 top_k: 3 }",
    "num_classes: 3 ignore_cross_boundary_bbox: true overlap_threshold: 0.1 mining_type: HARD_EXAMPLE sample_size: 4",
    "num_classes: 3 bp_inside: true overlap_threshold: 0.1",
    "num_classes: 3 bp_inside: true use_prior_for_matching: false code_type: CENTER_SIZE overlap_threshold: 0.1",
    "num_classes: 3 use_difficult_gt: false overlap_threshold: 0.1",
    "num_classes: 2 map_object_to_agnostic: true overlap_threshold: 0.1",
]


@pytest.mark.slow
@pytest.mark.parametrize("inside", FORMS)
def test_as_plain_loops(inside: str) -> None:
    matches = 0
    for seed in range(4):
        case, expected = made_case(inside, seed)
        matches += expected["matches"]
        np.testing.assert_allclose(case.forward()[0], expected["loc"] + expected["conf"], rtol=1e-9, err_msg=f"seed {seed}")
    assert matches > 4


@given(st.integers(0, 10**6), st.sampled_from(FORMS), st.integers(1, 3), st.integers(0, 6))
def test_as_plain_loops_on_any_batch(seed: int, inside: str, images: int, truths: int) -> None:
    case, expected = made_case(inside, seed, images, 5, truths)
    np.testing.assert_allclose(case.forward()[0], expected["loc"] + expected["conf"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("inside", FORMS)
def test_gradient(inside: str) -> None:
    """In both predictions; at these values no step of 1e-6 changes which priors are picked."""
    case, _ = made_case(inside, 1, images=1, priors=4, truths=2)
    case.layer.loss_weights = [1.0]
    case.check_gradient(step=1e-6, tolerance=1e-4)


def test_inputs_are_untouched_and_another_batch_fits() -> None:
    case, _ = made_case(FORMS[1], 3)
    before = [blob.data.copy() for blob in case.bottom]
    case.forward()
    case.backward(np.array(1.0))
    for blob, data in zip(case.bottom, before, strict=True):
        np.testing.assert_array_equal(blob.data, data)
    case.bottom[0].reshape(1, 28)
    case.bottom[1].reshape(1, 21)
    case.bottom[3].reshape(1, 1, 0, 8)
    assert case.forward()[0] == 0
    for i in (0, 1):
        case.bottom[i].reshape(0, case.bottom[i].shape[1])
    assert case.forward()[0] == 0
    assert case.backward(np.array(1.0))[0].shape == (0, 28)


def test_following_the_gradient_lowers_the_loss() -> None:
    case, _ = made_case(FORMS[1], 5)
    losses = []
    for _ in range(30):
        losses.append(float(case.forward()[0]))
        for blob, diff in zip(case.bottom[:2], case.backward(np.array(1.0))[:2], strict=True):
            blob.data[...] -= 0.2 * diff
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("num_classes: 0", "needs num_classes > 0"),
        ("num_classes: 3 background_label_id: 3", "with SOFTMAX, background_label_id must be below num_classes 3, got 3"),
        ("map_object_to_agnostic: true", "map_object_to_agnostic needs num_classes 2 and background_label_id 0, got 3 and 0"),
        ("share_location: false", "mining needs share_location: true"),
        ("neg_pos_ratio: 0", "neg_pos_ratio must be > 0, got 0"),
        ("mining_type: HARD_EXAMPLE sample_size: 0", "sample_size must be > 0, got 0"),
        (
            "do_neg_mining: false mining_type: HARD_EXAMPLE",
            "do_neg_mining: false and mining_type: HARD_EXAMPLE contradict each other; leave do_neg_mining out",
        ),
        ("num_classes: 4", r"bottom 1 of shape \(1, 9\) does not hold 3 priors x 4 values for each of 1 images"),
        ("share_location: false mining_type: NONE", r"bottom 0 of shape \(1, 12\) does not hold 3 priors x 12 values"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='MultiBoxLoss layer "layer": ' + message):
        hand_case(inside)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, 2, 0, 0, 0, 1, 1, 0), "a true box is of image 1, the batch has images 0 to 0"),
        ((0, 0, 0, 0, 0, 1, 1, 0), "label 0 of a true box is no object's class: those are 0 to 2 without the background, 0"),
        ((0, 3, 0, 0, 0, 1, 1, 0), "label 3 of a true box is no object's class"),
    ],
)
def test_true_boxes_that_mean_nothing(row: tuple[float, ...], message: str) -> None:
    case = hand_case()
    case.bottom[3].data[0, 0, 0] = row
    with pytest.raises(LayerError, match='MultiBoxLoss layer "layer": ' + message):
        case.forward()


def test_bad_variances_and_rows() -> None:
    case = hand_case()
    case.bottom[2].data[0, 1] = 0
    with pytest.raises(LayerError, match="the priors' variances must be > 0, got 0"):
        case.forward()
    case.bottom[3].reshape(1, 1, 2, 7)
    with pytest.raises(LayerError, match=r"the true boxes must have the shape \(1, 1, G, 8\), got \(1, 1, 2, 7\)"):
        case.forward()


@pytest.mark.parametrize("ratio", ["inf", "3e38"])
def test_a_neg_pos_ratio_beyond_all_negatives_takes_all(ratio: str) -> None:
    assert hand_case(f"neg_pos_ratio: {ratio}").forward()[0] == hand_case("neg_pos_ratio: 3").forward()[0]


# RefineDet's bottoms.


def refined_case(objects: list[float], arm: np.ndarray, inside: str = "") -> LayerCase:
    """hand_case's, with the objectness of each prior and the first stage's codes."""
    priors = np.array([[0.0, 0, 0.2, 0.2], [0.4, 0, 0.6, 0.2], [0.8, 0, 1, 0.2]])
    arm_conf = np.column_stack([1 - np.array(objects), objects]).reshape(1, 6)
    conf, rows = np.array([[0.0, 0, 0, 2, 0, 0, 0, 0, 0]]), truth_rows((0, 2, 0, 0.05, 0.05, 0.25, 0.25, 0))
    blobs = np.zeros((1, 12)), conf, priors_blob(priors), rows, arm_conf, arm
    return LayerCase(text(HAND + inside), *blobs, phase=TRAIN)


def test_refinedets_by_hand() -> None:
    """Refined by half a variance the first prior is the true box; of the two negatives only the second may be mined."""
    arm = np.zeros((1, 12))
    arm[0, :4] = 0.5
    case = refined_case([0.9, 0.005, 0.9], arm)
    np.testing.assert_allclose(case.forward()[0], 2 * math.log(3), rtol=1e-6)
    dloc, dconf, *others = case.backward(np.array(1.0))
    assert not dloc.any() and not dconf[0, 3:6].any() and dconf[0, 6:].any()
    assert not any(diff.any() for diff in others)
    np.testing.assert_allclose(refined_case([0.9] * 3, np.zeros((1, 12))).forward()[0], hand_case().forward()[0])


@pytest.mark.parametrize("mining", ["MAX_NEGATIVE", "HARD_EXAMPLE", "NONE"])
def test_refinedets_gradient(mining: str) -> None:
    random = np.random.default_rng(3)
    case = refined_case([0.9, 0.3, 0.6], random.normal(size=(1, 12)) / 4, f"mining_type: {mining} objectness_score: 0.5")
    for blob in case.bottom[:2]:
        blob.data[...] = random.normal(size=blob.shape)
    case.check_gradient()


def test_errors_of_refinedets_bottoms() -> None:
    with pytest.raises(LayerError, match=r"bottom 5 of shape \(1, 9\) does not hold 3 priors x 4 values for each of 1 images"):
        refined_case([1, 1, 1], np.zeros((1, 9)))
