from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from detection_case import python_layer, settings, whole_net
from golden import needs_golden
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.ops import generate_anchors

pytestmark = pytest.mark.usefixtures("device")

NINE = python_layer("Proposal", feat_stride=16)
ONE = python_layer("Proposal", feat_stride=4, scales="!!python/tuple [1]", ratios="[1]")
"""One anchor of 16 x 16: (0, 0, 15, 15), moved in steps of 4."""


def plain(scores: np.ndarray, deltas: np.ndarray, info: np.ndarray, given: dict[str, float]) -> list[list[float]]:
    """The definition, anchor by anchor, for one anchor of 16 x 16 and a stride of 4: x1, y1, x2, y2, score."""
    found = []
    for y in range(scores.shape[2]):
        for x in range(scores.shape[3]):
            dx, dy, dw, dh = deltas[0, :, y, x]
            centre = 4 * x + 8 + dx * 16, 4 * y + 8 + dy * 16
            half = 8 * math.exp(dw), 8 * math.exp(dh)
            box = [c + sign * h for sign in (-1, 1) for c, h in zip(centre, half, strict=True)]
            box = [min(max(v, 0), info[1 - i % 2] - 1) for i, v in enumerate(box)]
            if min(box[2] - box[0], box[3] - box[1]) + 1 >= given["min_size"] * info[2]:
                found.append([*box, scores[0, 1, y, x]])
    found = sorted(found, key=lambda b: -b[4])[: int(given["pre"])]
    kept: list[list[float]] = []
    for box in found:
        if all(not _overlap(box, k) > given["nms"] for k in kept):
            kept.append(box)
    return kept[: int(given["post"])]


def _overlap(a: list[float], b: list[float]) -> float:
    width, height = (max(min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 1, 0) for i in (0, 1))
    area = [(c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b)]
    return width * height / (area[0] + area[1] - width * height)


@pytest.mark.gpu_barrier
def test_by_hand() -> None:
    """Three positions in a row. Position 0 stays, (0, 0, 16, 16); 1 doubles its width: x from 4 - 8 to 4 + 24, clipped to
    0 and 22; 2 is (8, 0, 24, 16), clipped to 22. Position 1 is best, and overlaps 0 by 17/23 and 2 by 15/23."""
    scores = np.array([[[[9, 9, 9]], [[0.2, 0.9, 0.3]]]])
    deltas = np.zeros((1, 4, 1, 3))
    deltas[0, 2, 0, 1] = math.log(2)
    with settings(test_rpn_min_size=1):
        case = LayerCase(ONE, scores, deltas, [[17, 23, 1]], tops=2)
    rois, kept = case.forward()
    np.testing.assert_allclose(rois, [[0, 0, 0, 22, 16], [0, 8, 0, 22, 16]])
    np.testing.assert_array_equal(kept, [[0.9], [0.3]])


@needs_golden
@pytest.mark.parametrize("stands_in", [False, True])
@pytest.mark.parametrize("net", ["zf_end2end_test", "vgg16_end2end_test", "rfcn_resnet50_test"])
def test_golden(net: str, stands_in: bool) -> None:
    """The rois that py-faster-rcnn's layer gave, as sets; here they agree in order too."""
    stored, _ = whole_net(net)
    bottoms = [stored[f"blob.{name}.full"] for name in ("rpn_cls_prob_reshape", "rpn_bbox_pred", "im_info")]
    original = (
        'type: "Python" python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "\'feat_stride\': 16" }'
    )
    with settings():
        (rois,) = LayerCase(original if stands_in else NINE, *bottoms, dtype=np.float32).forward()
    expected = stored["blob.rois.full"]
    assert rois.shape == expected.shape
    distance = np.abs(rois[:, None] - expected[None]).max(axis=2)
    assert distance.min(axis=0).max() < 1e-3
    assert distance.min(axis=1).max() < 1e-3


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6), st.sampled_from([0.3, 0.7]), st.sampled_from([TRAIN, TEST]))
def test_agrees_with_the_definition(seed: int, height: int, width: int, overlap: float, phase: Phase) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.permutation(2 * height * width).reshape(1, 2, height, width) / 100
    deltas = rng.standard_normal((1, 4, height, width)) * 0.6
    info = np.array([4 * height + 9, 4 * width + 11, 0.5])
    given_limits = {"pre": 12, "post": 4, "nms": overlap, "min_size": 20}
    group = "train" if phase == TRAIN else "test"
    names = {"pre": "rpn_pre_nms_top_n", "post": "rpn_post_nms_top_n", "nms": "rpn_nms_thresh", "min_size": "rpn_min_size"}
    with settings(**{f"{group}_{names[key]}": value for key, value in given_limits.items()}):
        case = LayerCase(ONE, scores, deltas, info[None], tops=2, phase=phase)
    rois, kept = case.forward()
    expected = np.array(plain(scores, deltas, info, given_limits)).reshape(-1, 5)
    np.testing.assert_allclose(rois[:, 1:], expected[:, :4], atol=1e-9)
    np.testing.assert_array_equal(kept[:, 0], expected[:, 4])


def test_no_proposal_is_large_enough() -> None:
    case = LayerCase(NINE, np.zeros((1, 18, 2, 3)), np.zeros((1, 36, 2, 3)), [[8, 9, 1]], tops=2)
    rois, scores = case.forward()
    assert rois.shape == (0, 5)
    assert scores.shape == (0, 1)


def test_nan_deltas_give_no_proposal() -> None:
    case = LayerCase(NINE, np.zeros((1, 18, 2, 3)), np.full((1, 36, 2, 3), np.nan), [[800, 900, 1]])
    assert case.forward()[0].shape == (0, 5)


def test_a_limit_of_zero_is_no_limit() -> None:
    with settings(test_rpn_pre_nms_top_n=0, test_rpn_post_nms_top_n=0, test_rpn_nms_thresh=1.0, test_rpn_min_size=1):
        case = LayerCase(ONE, np.zeros((1, 2, 6, 7)), np.zeros((1, 4, 6, 7)), [[100, 100, 1]])
    assert case.forward()[0].shape == (42, 5)


def test_normalised_deltas_are_unnormalised_while_training() -> None:
    """A delta of 1 is 0.1 widths in x, and nothing more than 1 in TEST."""
    means, stds = (0.5, 0.0, 0.0, 0.0), (0.1, 0.1, 0.2, 0.2)
    deltas = np.zeros((1, 4, 1, 1))
    deltas[0, 0] = 1
    for phase, moved in ((TRAIN, 0.6), (TEST, 1.0)):
        with settings(train_rpn_normalize_targets=True, train_rpn_normalize_means=means, train_rpn_normalize_stds=stds):
            case = LayerCase(ONE, np.zeros((1, 2, 1, 1)), deltas, [[100, 100, 1]], phase=phase)
        np.testing.assert_allclose(case.forward()[0], [[0, 16 * moved, 0, 16 * moved + 16, 16]])


def test_zero_diffs_and_inputs_untouched() -> None:
    rng = np.random.default_rng(0)
    bottoms = [rng.random((1, 18, 4, 5)), rng.standard_normal((1, 36, 4, 5)), np.array([[300.0, 400, 1.5]])]
    case = LayerCase(NINE, *bottoms, tops=2)
    case.forward()
    for blob, array in zip(case.bottom, bottoms, strict=True):
        np.testing.assert_array_equal(blob.data, array)
        blob.diff[...] = 7
    diffs = case.backward(np.ones(case.top[0].shape), np.ones(case.top[1].shape))
    assert not any(diff.any() for diff in diffs)


def test_another_map_size() -> None:
    """The second forward gives what a new layer gives."""
    rng = np.random.default_rng(1)
    case = LayerCase(NINE, np.zeros((1, 18, 2, 3)), np.zeros((1, 36, 2, 3)), [[100, 90, 1]])
    case.forward()
    scores, deltas = rng.random((1, 18, 5, 4)), rng.standard_normal((1, 36, 5, 4)) * 0.1
    for blob, array in zip(case.bottom, (scores, deltas, [[200, 150, 1]]), strict=True):
        blob.reshape(np.shape(array))
        blob.data[...] = array
    np.testing.assert_array_equal(case.forward()[0], LayerCase(NINE, scores, deltas, [[200, 150, 1]]).forward()[0])


def test_param_str_set_later_wins() -> None:
    """As a script does that builds the layer itself: either attribute counts."""
    for name in ("param_str", "param_str_"):
        case = LayerCase(NINE, np.zeros((1, 18, 2, 3)), np.zeros((1, 36, 2, 3)), [[100, 90, 1]])
        setattr(case.layer, name, "'feat_stride': 8")
        case.layer.connect(case.bottom, case.top)
        assert case.layer.stride == 8


def test_coco_scales() -> None:
    text = python_layer("Proposal", feat_stride=16, scales="!!python/tuple [4, 8, 16, 32]")
    case = LayerCase(text, np.zeros((1, 24, 2, 3)), np.zeros((1, 48, 2, 3)), [[100, 90, 1]])
    np.testing.assert_array_equal(case.layer.anchors, generate_anchors(scales=(4, 8, 16, 32)))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            ((2, 18, 4, 5), (2, 36, 4, 5), (2, 3)),
            r"takes one image, got scores of shape \(2, 18, 4, 5\) and deltas of shape \(2, 36",
        ),
        (((1, 18, 4, 5), (2, 36, 4, 5), (1, 3)), "takes one image"),
        (((1, 24, 4, 5), (1, 36, 4, 5), (1, 3)), r"9 anchors need scores of shape \(1, 18, H, W\), got \(1, 24, 4, 5\)"),
        (((1, 18, 4), (1, 36, 4, 5), (1, 3)), r"9 anchors need scores of shape \(1, 18, H, W\), got \(1, 18, 4\)"),
        (((1, 18, 4, 5), (1, 36, 5, 4), (1, 3)), r"9 anchors need deltas of shape \(1, 36, 4, 5\), got \(1, 36, 5, 4\)"),
        (((1, 18, 4, 5), (1, 36, 4, 5), (1, 2)), r"im_info must be \(1, 3\): height, width, scale; got shape \(1, 2\)"),
    ],
)
def test_errors(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(LayerError, match=f'Proposal layer "layer": {message}'):
        LayerCase(NINE, *(np.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("info", [(np.nan, 60, 1), (40, np.inf, 1), (0, 60, 1), (40, 60, 0)])
def test_im_info_that_no_image_has(info: tuple[float, float, float]) -> None:
    bottoms = [np.zeros((1, 18, 3, 4)), np.zeros((1, 36, 3, 4)), np.array([info])]
    case = LayerCase("""type: "Proposal" python_param { param_str: "'feat_stride': 16" }""", *bottoms)
    with pytest.raises(LayerError, match="im_info must be a positive height, width and scale, got "):
        case.forward()


# proposal_param, of forks.

GIVEN = "feat_stride: 16 ratio: 0.5 ratio: 2 scale: 8 scale: 32"
BOTH = (
    r"it may be PVANET's \(proposal_param's scale counts in base_size; --fork pvanet\) or happynear's \(.* in pixels; --fork"
    r" happynear\), and the files do not show which: give --fork NAME, or Net's fork="
)


def by_param(inside: str, fork: str, *bottoms: Any, tops: int = 2) -> LayerCase:
    return LayerCase(f'type: "Proposal" proposal_param {{ {inside} }}', *bottoms, tops=tops, fork=fork)


def maps(anchors: int, info: Sequence[float] = (90, 90, 1)) -> tuple[Any, ...]:
    return np.zeros((1, 2 * anchors, 3, 4)), np.zeros((1, 4 * anchors, 3, 4)), np.array([info])


@pytest.mark.parametrize("fork", ["", "ssd"])
def test_proposal_param_without_a_fork_that_has_it_is_refused(fork: str) -> None:
    with pytest.raises(LayerError, match=BOTH):
        by_param(GIVEN, fork, *maps(4))


def test_the_anchors_depend_on_the_fork() -> None:
    """Sides by hand. PVANET's: 16 / sqrt(1/2) is 23, half of it rounded 12; by 8: 184 x 96. happynear's: 8 / sqrt(1/2) - 1 is
    10.3, so 11 x 6 with both ends (8 sqrt(1/2) - 1 is 4.66)."""
    sides = {}
    for fork in ("pvanet", "happynear"):
        layer = by_param(GIVEN, fork, *maps(4)).layer
        assert isinstance(layer, Proposal)
        sides[fork] = (layer.anchors[:, 2:] - layer.anchors[:, :2] + 1).tolist()
        np.testing.assert_array_equal(layer.anchors[:, :2] + layer.anchors[:, 2:], np.full((4, 2), 15))
        assert str(layer.choice) == f"Proposal of {'PVANET' if fork == 'pvanet' else fork}: fork {fork}"
    assert sides["pvanet"][:2] == [[184, 96], [736, 384]]
    assert sides["happynear"][:3] == [[11, 6], [45, 23], [6, 11]]
    np.testing.assert_array_equal(by_param(GIVEN, "pvanet", *maps(4)).layer.anchors, generate_anchors(16, (0.5, 2), (8, 32)))


def test_a_box_that_is_too_small_scores_0_and_stays() -> None:
    """One anchor of 16 x 16, four positions; boxes of the last column are cut to 6. Equal scores: in their order."""
    scores = np.zeros((1, 2, 1, 4))
    scores[0, 1] = [0.3, 0.2, 0.4, 0.9]
    info = [16, 54, 1]
    case = by_param("ratio: 1 scale: 1 min_size: 10 nms_thresh: 0.9", "pvanet", scores, np.zeros((1, 4, 1, 4)), [info])
    rois, kept = case.forward()
    assert kept.tolist() == [0.4, 0.3, 0.2, 0]
    assert rois[:, 1].tolist() == [32, 0, 16, 48]
    small = by_param("ratio: 1 scale: 1 post_nms_topn: 2", "pvanet", scores, np.zeros((1, 4, 1, 4)), [info])
    assert len(small.forward()[0]) == 2
    wide = by_param("ratio: 1 scale: 1 min_size: 10", "pvanet", scores, np.zeros((1, 4, 1, 4)), [[*info, 0.5]])
    assert wide.forward()[1].max() == np.float64(0.9), "a fourth number of im_info is the scale of x"


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("ratio: 1", r"scale must list numbers > 0, got \[\]"),
        ("scale: 1 ratio: -1", r"ratio must list numbers > 0, got \[-1.0\]"),
        ("scale: 1 ratio: 1 feat_stride: 0", "feat_stride must be > 0, got 0"),
        ("scale: 1 ratio: 1 base_size: 0", "base_size must be > 0, got 0"),
        ("scale: 1 ratio: 1 post_nms_topn: 0", "post_nms_topn must be > 0, got 0"),
        ("scale: 1 ratio: 1 " * 101, "101 ratios and 101 scales are too many anchors; at most 10,000"),
        ("scale: 1 scale: 2 ratio: 1", r"2 anchors need scores of shape \(1, 4, H, W\), got \(1, 2, 3, 4\)"),
    ],
)
def test_proposal_params_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        by_param(inside, "happynear", *maps(1))
