"""Python layers of ENet, FPN, CTPN and MNC that are built in, and the sentences on those that are not."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from detection_case import settings
from hypothesis import given
from hypothesis import settings as often
from hypothesis import strategies as st
from layer_case import LayerCase

import minicaffe
from minicaffe import TEST, TRAIN
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.proposal.anchor_target import AnchorTarget
from minicaffe.layers.proposal.param_str import StandIn
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.proposal.pyramid_rois import SCALES, STRIDES, pyramid_levels
from minicaffe.layers.python.python import OTHER_FORMS, STAND_INS
from minicaffe.ops import bbox_overlaps, generate_anchors

pytestmark = pytest.mark.usefixtures("device")


def python_layer(module: str, layer: str, param_str: str = "", bottoms: int = 0, tops: int = 0) -> str:
    names = "".join(f' bottom: "b{i}"' for i in range(bottoms)) + "".join(f' top: "t{i}"' for i in range(tops))
    return f'type: "Python"{names} python_param {{ module: "{module}" layer: "{layer}" param_str: "{param_str}" }}'


def named(text: str, *tops: str) -> str:
    for i, name in enumerate(tops):
        text = text.replace(f'"t{i}"', f'"{name}"')
    return text


def dropout(phase: str = "TRAIN", p: str = "0.25") -> str:
    return python_layer("spatial_dropout", "SpatialDropoutLayer", f"{{'phase': '{phase}', 'p': '{p}'}}")


def test_spatial_dropout_drops_whole_maps() -> None:
    x = np.random.default_rng(0).uniform(1, 2, (40, 50, 2, 3))
    case = LayerCase(dropout(), x)
    (y,) = case.forward()
    dropped = (y == 0).all(axis=(2, 3))
    np.testing.assert_allclose(y, np.where(dropped[:, :, None, None], 0, x / 0.75), rtol=1e-12)
    assert 0.2 < dropped.mean() < 0.3
    (dx,) = case.backward(np.full(x.shape, 3.0))
    np.testing.assert_allclose(dx, np.broadcast_to(np.where(dropped, 0, 4)[:, :, None, None], x.shape))
    assert ((case.forward()[0] == 0).all(axis=(2, 3)) != dropped).any()


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_spatial_dropout_in_test_is_a_scale_whatever_the_nets_phase(phase) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    case = LayerCase(dropout("TEST", "0.1"), x, phase=phase)
    np.testing.assert_allclose(case.forward()[0], x / 0.9)
    case.check_gradient()
    case.bottom[0].reshape(5, 2)
    case.bottom[0].data[...] = 9
    np.testing.assert_allclose(case.forward()[0], np.full((5, 2), 10.0))


@pytest.mark.parametrize(
    ("param_str", "shape", "message"),
    [
        ("{'phase': 'TEST', 'p': '1'}", (2, 3), "p must be above 0 and below 1, and phase TRAIN or TEST"),
        ("{'phase': 'TEST', 'p': 'x'}", (2, 3), "p must be above 0 and below 1"),
        ("{'p': '0.5'}", (2, 3), "p must be above 0 and below 1, and phase TRAIN or TEST"),
        ("{'phase': 'TEST', 'p': '0.5'}", (2,), "x must have at least two axes"),
    ],
)
def test_spatial_dropout_errors(param_str: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(python_layer("spatial_dropout", "SpatialDropoutLayer", param_str), np.ones(shape))


def pyramid(height: int = 128, width: int = 192, scale: float = 1.0) -> list[np.ndarray]:
    """im_info, deltas and scores of an image: no deltas, every score 0, and maps a cell larger than the image."""
    maps = [(height // stride + 1, width // stride + 1) for stride in STRIDES]
    return [
        np.array([[height, width, scale]]),
        *(np.zeros((1, 24, *size)) for size in maps),
        *(np.zeros((1, 12, *size)) for size in maps),
    ]


def pyramid_case(bottoms: list[np.ndarray], post: int) -> LayerCase:
    text = python_layer("rpn.proposal_layer", "ProposalLayer", "{'feat_stride': '4,8,16,32,64'}", 11, 1)
    with settings(test_rpn_post_nms_top_n=post, test_rpn_pre_nms_top_n=6000, test_rpn_nms_thresh=0.7):
        return LayerCase(text, *bottoms)


def test_pyramid_proposals_by_hand() -> None:
    """The best of a map of 8 pixels a cell, and after it that of one of 4: anchors in strides, clipped; NMS over all maps."""
    bottoms = pyramid()
    bottoms[6 + 1][0, 6 + 2, 5, 7] = 3  # scores of 8 pixels a cell: ratio 0.5's scale 16 and 32, then ratio 1's 16
    bottoms[6 + 0][0, 6 + 2, 1, 2] = 2
    bottoms[1 + 0][0, 4 * 2 + 2, 1, 2] = np.log(0.5)  # half as wide
    rois = pyramid_case(bottoms, 2).forward()[0]
    assert SCALES == (16, 32)
    first = generate_anchors(8, (0.5, 1, 2), SCALES)[2] + [56, 40, 56, 40]
    second = generate_anchors(4, (0.5, 1, 2), SCALES)[2] + [8, 4, 8, 4]
    centre, quarter = (second[0] + second[2] + 1) / 2, (second[2] - second[0] + 1) / 4
    second[[0, 2]] = centre - quarter, centre + quarter - 1
    first[2:] += 1  # as in py-faster-rcnn, a box ends one pixel after its anchor
    second[2:] += 1
    clipped = np.clip([first, second], 0, [191, 127, 191, 127])
    np.testing.assert_allclose(rois, np.column_stack([[0, 0], clipped]), rtol=1e-6)


def test_pyramid_proposals_repeat_some_up_to_the_number() -> None:
    bottoms = pyramid(64, 64)
    rois = pyramid_case(bottoms, 300).forward()[0]
    assert rois.shape == (300, 5)
    first = len(np.unique(rois, axis=0))
    assert first < 100
    assert len(np.unique(rois[:first], axis=0)) == first
    assert (bbox_overlaps(rois[:first, 1:], rois[:first, 1:])[np.triu_indices(first, 1)] <= 0.7 + 1e-6).all()


def test_pyramid_proposals_of_a_tiny_image_are_none() -> None:
    bottoms = pyramid(4, 4)
    assert pyramid_case(bottoms, 10).forward()[0].shape == (0, 5)


@pytest.mark.parametrize(
    ("i", "shape", "message"),
    [
        (0, (1, 2), r"im_info must be \(1, 3\)"),
        (2, (1, 12, 17, 25), r"6 anchors at a cell of 8 pixels need the shape \(1, 24, H, W\); got \(1, 12, 17, 25\)"),
        (9, (1, 12, 3, 25), r"6 anchors at a cell of 32 pixels need the shape \(1, 12, H, W\), H and W those of the deltas"),
    ],
)
def test_pyramid_proposal_shapes(i: int, shape: tuple[int, ...], message: str) -> None:
    bottoms = pyramid()
    bottoms[i] = np.zeros(shape)
    with pytest.raises(LayerError, match=message):
        pyramid_case(bottoms, 10)


def test_pyramid_proposals_of_maps_that_are_too_small() -> None:
    case = pyramid_case([np.array([[512, 192, 1.0]]), *pyramid()[1:]], 10)
    with pytest.raises(LayerError, match="49 x 33 cells of 4 pixels are fewer than the image's 48 x 128"):
        case.forward()


def as_rois(rois: np.ndarray, most: int) -> list[np.ndarray]:
    text = named(python_layer("rpn.as_rois", "As_roisLayer", "{}", 1, 5), "rois", *(f"rois_h{i}" for i in range(2, 6)))
    with settings(test_rpn_post_nms_top_n=most):
        return LayerCase(text, rois, tops=5).forward()


def test_rois_by_their_size() -> None:
    """224 x 224 is of level 4; sides halve and double from level to level; a roi without area is of level 2."""
    sides = [224, 111, 112, 223, 448, 2000, 3, 0]
    rois = np.array([[0, 5, 6, 5 + side, 6 + side] for side in sides], float)
    assert pyramid_levels(rois).tolist() == [4, 2, 3, 3, 5, 5, 2, 2]
    tops = as_rois(rois, 8)
    assert [top.shape for top in tops] == [(32, 5), *[(8, 5)] * 4]
    np.testing.assert_array_equal(tops[1][:3], rois[[1, 6, 7]])
    np.testing.assert_array_equal(tops[2][:2], rois[[2, 3]])
    np.testing.assert_array_equal(tops[0], np.concatenate(tops[1:]))
    assert not tops[1][3:].any()


@often(max_examples=20, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 12))
def test_every_roi_has_one_place(seed: int, count: int) -> None:
    corner, size = np.random.default_rng(seed).uniform(1, 900, (2, count, 2))
    rois = np.hstack([np.zeros((count, 1)), corner, corner + size])
    found = as_rois(rois, 12)[0]
    found = found[found.any(axis=1)]
    assert sorted(map(tuple, found)) == sorted(map(tuple, rois))


def test_more_rois_than_places() -> None:
    with pytest.raises(LayerError, match=r"3 rois are more than TEST.RPN_POST_NMS_TOP_N, 2"):
        as_rois(np.ones((3, 5)), 2)


def text_case(scores: np.ndarray, deltas: np.ndarray) -> LayerCase:
    text = named(python_layer("layers.text_proposal_layer", "ProposalLayer", "'feat_stride': 16", 3, 2), "rois", "scores")
    return LayerCase(text, scores, deltas, np.array([[60, 90, 1.0]]), tops=2)


def test_text_proposals_by_hand() -> None:
    """The second anchor (16 x 16) of the cell at row 1, column 2, a quarter of its height up and twice as high."""
    scores, deltas = np.random.default_rng(0).normal(size=(1, 20, 3, 4)), np.zeros((1, 20, 3, 4))
    deltas[0, 2:4, 1, 2] = -0.25, np.log(2)
    boxes, found = text_case(scores, deltas).forward()
    assert boxes.shape == (120, 4)
    at = 10 * (4 * 1 + 2) + 1
    centre = 16 + 7.5 - 4
    np.testing.assert_allclose(boxes[at], [32, centre - 16, 47, centre + 16], rtol=1e-6)
    np.testing.assert_allclose(boxes[at + 2], [32, 16 + 7.5 - 16.5, 47, 16 + 7.5 + 16.5], atol=1.01)  # 33 high
    np.testing.assert_allclose(boxes[9], [0, 0, 15, 59])  # 283 high, clipped
    np.testing.assert_array_equal(found[:, 0], scores[0, 10:].transpose(1, 2, 0).ravel())


def test_text_proposal_shapes() -> None:
    with pytest.raises(LayerError, match=r"10 anchors need shape \(1, 20, H, W\), the same H and W .*; got \(1, 20, 3, 5\)"):
        text_case(np.zeros((1, 20, 3, 4)), np.zeros((1, 20, 3, 5)))


def test_mncs_proposals_are_py_faster_rcnns_in_phase_test_only() -> None:
    random = np.random.default_rng(0)
    given = random.normal(size=(1, 18, 4, 5)), random.normal(size=(1, 36, 4, 5)), np.array([[64, 80, 1.0]])
    texts = [python_layer(f"{room}.proposal_layer", "ProposalLayer", "'feat_stride': 16", 3, 1) for room in ("pylayer", "rpn")]
    mine, same = (LayerCase(text, *given).forward()[0] for text in texts)
    np.testing.assert_array_equal(mine, same)
    assert len(mine) > 5
    with pytest.raises(
        LayerError, match=r"MNC \(github.com/daijifeng001/MNC\) gives the deltas gradients of the rois in phase TRAIN"
    ):
        LayerCase(texts[0], *given, phase=TRAIN)


def mnc(module: str, layer: str, *arrays: np.ndarray, phase=TEST) -> LayerCase:
    return LayerCase(python_layer(f"pylayer.{module}", layer, "", len(arrays), 1), *arrays, phase=phase)


def test_mncs_masks_are_maps() -> None:
    masks = np.random.default_rng(0).normal(size=(3, 16))
    case = mnc("mask_layer", "MaskLayer", masks)
    assert case.forward()[0].tolist() == masks.reshape(3, 1, 4, 4).tolist()
    case.check_gradient()
    case.bottom[0].reshape(2, 1, 3, 3)
    assert case.forward()[0].shape == (2, 1, 3, 3)
    with pytest.raises(LayerError, match=r"masks must be \(R, S\^2\), got shape \(3, 15\)"):
        mnc("mask_layer", "MaskLayer", masks[:, :15])
    with pytest.raises(LayerError, match="matches with the true masks in phase TRAIN, which is not built in"):
        mnc("mask_layer", "MaskLayer", masks, phase=TRAIN)


def test_mncs_second_stage_has_the_box_of_the_best_class() -> None:
    """Roi 0, 20 x 10 pixels: class 1 moves it by its width, past the image of 30 x 40. Roi 1: the background is best."""
    rois, deltas = np.array([[0, 10, 5, 29, 14], [0, 2, 3, 4, 5.0]]), np.zeros((2, 8))
    deltas[0, 4] = 1
    arrays = rois, deltas, np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([[30, 40, 1.0]])
    case = mnc("stage_bridge_layer", "StageBridgeLayer", *arrays)
    np.testing.assert_allclose(case.forward()[0], [[0, 30, 5, 39, 15], [0, 2, 3, 5, 6]], rtol=1e-12)
    assert not any(diff.any() for diff in case.backward(np.ones((2, 5))))
    with pytest.raises(LayerError, match=r"bottom 1 must be \(2, 8\), as there are scores of shape \(2, 2\); got \(2, 4\)"):
        mnc("stage_bridge_layer", "StageBridgeLayer", rois, deltas[:, :4], *arrays[2:])


SSH = "'feat_stride': 8, 'scales': [1, 2], 'ratios': [1], 'allowed_border': 9"


def ssh(layer: str, *arrays: np.ndarray, param_str: str = SSH, phase=TEST) -> LayerCase:
    module = "proposal_layer" if layer == "ProposalLayer" else "anchor_target_layer"
    text = python_layer(f"SSH.layers.{module}", layer, f"{{{param_str}}}", len(arrays), 2 if layer == "ProposalLayer" else 4)
    names = "labels", "targets", "inside_weights", "outside_weights"
    text = named(text, *(("rois", "scores") if layer == "ProposalLayer" else names))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case = LayerCase(text, *arrays, tops=2 if layer == "ProposalLayer" else 4, phase=phase)
    assert ["SSH reads its limits from a file of settings" in str(one.message) for one in caught] == [True]
    return case


def test_sshs_proposals_overlap_in_test_and_not_in_train() -> None:
    random = np.random.default_rng(0)
    given = random.uniform(size=(1, 4, 3, 5)), random.normal(size=(1, 8, 3, 5)) / 9, np.array([[24, 40, 1.0]])
    boxes, scores = ssh("ProposalLayer", *given).forward()
    assert boxes.shape == (30, 5) and scores.shape == (30, 1) and (np.diff(scores[:, 0]) <= 0).all()
    fewer, _ = ssh("ProposalLayer", *given, phase=TRAIN).forward()
    overlaps = bbox_overlaps(fewer[:, 1:], fewer[:, 1:])
    assert 1 < len(fewer) < 30 and overlaps[~np.eye(len(fewer), dtype=bool)].max() <= 0.3
    other = ssh("ProposalLayer", *given, param_str=SSH + ", 'base_size': 8")
    np.testing.assert_array_equal(other.layer.anchors, generate_anchors(8, [1], [1, 2]))  # type: ignore[attr-defined]


def test_sshs_targets_are_the_hardest() -> None:
    """A face of one anchor, which many others overlap by half and more; 64 of them are positive, with the least scores."""
    random = np.random.default_rng(1)
    scores, info = random.uniform(size=(1, 4, 40, 50)), np.array([[320, 400, 1.0]])
    face = np.array([[100, 100, 259, 259, 1.0]])
    param_str = "'feat_stride': 8, 'scales': [10, 11], 'ratios': [1], 'allowed_border': 9"
    bottoms = scores, face, info, np.zeros((1, 3, 320, 400))
    labels = ssh("AnchorTargetLayer", *bottoms, scores, param_str=param_str, phase=TRAIN).forward()[0].reshape(2, 40, 50)
    assert (labels == 1).sum() == 64 and (labels == 0).sum() == 192
    anchors = generate_anchors(16, [1], [10, 11])[:, None, None] + 8 * np.stack(np.meshgrid(*map(np.arange, (50, 40))) * 2, -1)
    overlaps = bbox_overlaps(anchors.reshape(-1, 4), face[:, :4]).reshape(2, 40, 50)
    inside = (anchors >= -9).all(axis=-1) & (anchors[..., 2] < 409) & (anchors[..., 3] < 329)
    for label, among, ease in ((1, overlaps >= 0.5, 1.0), (0, overlaps < 0.3, -1.0)):
        left = among & inside & (labels != label)
        assert left.any() and (ease * scores[0, 2:])[labels == label].max() <= (ease * scores[0, 2:])[left].min()
    drawn = ssh("AnchorTargetLayer", *bottoms, param_str=param_str, phase=TRAIN).forward()[0].reshape(2, 40, 50)
    assert (drawn == 1).sum() == 64 and (drawn != labels).any()


def test_sshs_anchors_all_count_where_none_is_inside_and_none_is_forced() -> None:
    bottoms = np.zeros((1, 4, 2, 3)), np.array([[0, 0, 3, 3, 1.0]]), np.array([[9, 9, 1.0]]), np.zeros((1, 3, 9, 9))
    param_str = "'feat_stride': 8, 'scales': [4, 8], 'ratios': [1]"
    labels = ssh("AnchorTargetLayer", *bottoms, param_str=param_str, phase=TRAIN).forward()[0]
    assert (labels == 0).all()
    with pytest.raises(LayerError, match="positive_overlap must be above 0 and at most 1, got 2"):
        ssh("AnchorTargetLayer", *bottoms, param_str=param_str + ", 'positive_overlap': 2", phase=TRAIN)
    with pytest.raises(LayerError, match=r"bottoms 0 and 4 must have one shape, got \(1, 4, 2, 3\) and \(1, 4, 2, 2\)"):
        ssh("AnchorTargetLayer", *bottoms, np.zeros((1, 4, 2, 2)), param_str=param_str, phase=TRAIN)


@pytest.mark.parametrize(
    ("module", "layer", "bottoms", "tops", "message"),
    [
        ("pylayer.cfm_layer", "CFMLayer", 1, 1, r"from MNC \(github.com/daijifeng001/MNC\), is not built in"),
        ("SSH.layers.other_layer", "OtherLayer", 3, 2, r"from SSH \(github.com/mahyarnajibi/SSH\), is not built in"),
        ("rpn.proposal_layer", "ProposalLayer2", 4, 5, r"from PVANet \(github.com/sanghoon/pva-faster-rcnn\), is not built in"),
        ("rpn.heatmap_layer", "HeatmapLayer", 2, 1, "from bottom-up-attention .* is not built in"),
        (
            "rpn.anchor_target_layer",
            "AnchorTargetLayer",
            8,
            4,
            "is built in for 3 to 4 bottoms and 4 tops, but this one has 8 and 4, as",
        ),
        (
            "rpn.proposal_target_layer",
            "ProposalTargetLayer",
            2,
            8,
            "is built in for 2 bottoms and 5 tops, but this one has 2 and 8",
        ),
        (
            "rpn.proposal_layer",
            "ProposalLayer",
            5,
            1,
            "for 3 bottoms and 1 to 2 tops or 11 bottoms and 1 tops, but this one has 5",
        ),
        ("mine", "Mine", 1, 1, 'the layer "Mine" of the Python module "mine" is not built in'),
    ],
)
def test_what_is_not_built_in(module: str, layer: str, bottoms: int, tops: int, message: str) -> None:
    inputs = "".join(f'input: "b{i}" input_shape {{ dim: 1 }} ' for i in range(bottoms))
    net = parse_net(f'{inputs} layer {{ name: "p" {python_layer(module, layer, "", bottoms, tops)} }}')
    with pytest.raises(LayerError, match=message) as caught:
        minicaffe.Net(net, TEST)
    assert f'minicaffe.allow_module("{module}")' in str(caught.value)


def test_the_plain_proposal_layer_stays() -> None:
    given = np.zeros((1, 18, 4, 5)), np.zeros((1, 36, 4, 5)), np.array([[64, 80, 1.0]])
    case = LayerCase(python_layer("rpn.proposal_layer", "ProposalLayer", "'feat_stride': 16", 3, 1), *given)
    assert type(case.layer) is Proposal


@pytest.mark.parametrize("key", ["anchor_scales", "anchor_base", "rpn_pre_nms_top_n"])
def test_an_unknown_key_of_param_str_is_refused_with_the_known_ones(key: str) -> None:
    text = python_layer("rpn.proposal_layer", "ProposalLayer", f"{{'feat_stride': 16, '{key}': 8}}", 3, 1)
    wanted = rf"has no key '{key}'.* \(it has: feat_stride, base_size, scales, ratios\); --allow-module rpn.proposal_layer, or "
    with pytest.raises(LayerError, match=wanted):
        LayerCase(text, np.zeros((1, 18, 2, 2)), np.zeros((1, 36, 2, 2)), np.array([[32, 32, 1.0]]))


def test_a_stand_in_without_keys_refuses_them_too() -> None:
    with pytest.raises(LayerError, match=r"has no key 'threshold' \(it has: none\); --allow-module pylayer.mask_layer"):
        LayerCase(python_layer("pylayer.mask_layer", "MaskLayer", "'threshold': 2", 1, 1), np.zeros((1, 4)))


def test_keys_that_change_nothing_in_the_original_are_taken() -> None:
    text = python_layer("pylayer.proposal_layer", "ProposalLayer", "{'feat_stride': 16, 'gradient_scale': 1}", 3, 1)
    case = LayerCase(text, np.zeros((1, 18, 2, 2)), np.zeros((1, 36, 2, 2)), np.array([[32, 32, 1.0]]))
    assert isinstance(case.layer, Proposal) and case.layer.stride == 16


def test_every_stand_in_checks_its_keys_and_tops() -> None:
    classes = [*STAND_INS.values(), *OTHER_FORMS.values()]
    assert len(classes) == 17 and all(issubclass(kind, StandIn) for kind in classes)


def test_pyramid_proposals_take_the_strides_of_the_original_alone() -> None:
    for strides, wrong in (("64,32,16,8,4", ""), ("8,16,32,64,128", "feat_stride must be 4, 8, 16, 32, 64, got")):
        text = python_layer("rpn.proposal_layer", "ProposalLayer", f"'feat_stride': '{strides}'", 11, 1)
        if not wrong:
            LayerCase(text, *pyramid())
            continue
        with pytest.raises(LayerError, match=wrong):
            LayerCase(text, *pyramid())


def roi_data(*tops: str) -> LayerCase:
    text = python_layer("roi_data_layer.layer", "RoIDataLayer", "'num_classes': 11", 0, len(tops))
    return LayerCase(named(text, *tops), tops=len(tops), phase=TRAIN)


def test_tops_of_another_layer_are_refused() -> None:
    wanted = r'top 2 is called "secondary_rois", but .* has "label" in its name there; --allow-module roi_data_layer.layer'
    with pytest.raises(LayerError, match=wanted):
        roi_data("data", "rois", "secondary_rois", "labels", "bbox_targets", "bbox_loss_weights")
    roi_data("data", "rois", "labels", "bbox_targets", "bbox_loss_weights")
    roi_data("image", "im_info", "gt_boxes")


@pytest.mark.parametrize(
    ("layer", "bottoms"),
    [
        ("proposal_layer ProposalLayer", [np.zeros((1, 24, 2, 2)), np.zeros((1, 48, 2, 2)), np.ones((1, 3))]),
        ("anchor_target_layer AnchorTargetLayer", [np.zeros((1, 24, 2, 2)), np.ones((1, 5)), np.ones((1, 3))]),
    ],
)
def test_another_number_of_anchors_names_where_they_come_from(layer: str, bottoms: list[np.ndarray]) -> None:
    module, name = layer.split()
    tops = ["rois"] if name == "ProposalLayer" else ["labels", "targets", "inside_weights", "outside_weights"]
    text = named(python_layer(f"rpn.{module}", name, "'feat_stride': 16", 3, len(tops)), *tops)
    wanted = rf"9 anchors need .*'scales' and 'ratios', .*generate_anchors.py .*--allow-module rpn.{module}"
    with pytest.raises(LayerError, match=wanted):
        LayerCase(text, *bottoms, tops=len(tops))


def test_a_repository_is_a_guess_from_the_folders_name() -> None:
    with pytest.raises(LayerError, match=r'module "rpn.other", perhaps from py-faster-rcnn'):
        LayerCase(python_layer("rpn.other", "Other", "", 1, 1), np.zeros(3))


BOXES = ("rpn.anchor_target_layer", "AnchorTargetLayer", 3)
WEIGHTS = "rpn_bbox_inside_weights", "rpn_bbox_outside_weights"


@pytest.mark.parametrize(
    ("kind", "tops", "wrong"),
    [
        (("rpn.proposal_layer", "ProposalLayer", 3), ("scores", "rois"), 'top 0 is called "scores".*"roi" or "box" or'),
        (("SSH.layers.proposal_layer", "ProposalLayer", 3), ("m1@boxes", "m1@rois"), 'top 1 is called "m1@rois".*"score"'),
        (("layers.text_proposal_layer", "ProposalLayer", 3), ("scores", "rois"), 'top 0 is called "scores"'),
        (BOXES, ("rpn_labels", "bbox_targets", *WEIGHTS[::-1]), 'top 2 .*"weight" or "inside" and not outside in'),
        (BOXES, ("rpn_labels", WEIGHTS[0], "bbox_targets", WEIGHTS[1]), 'top 1 is called "rpn_bbox_inside_weights"'),
        (("rpn.as_rois", "As_roisLayer", 1), ("rois", "rois_h2", "rois_h3", "scores", "rois_h5"), 'top 3 is called "scores"'),
    ],
)
def test_tops_in_another_order_are_refused(kind: tuple[str, str, int], tops: Sequence[str], wrong: str) -> None:
    module, name, bottoms = kind
    given = "".join(f' top: "{top}"' for top in tops)
    text = python_layer(module, name, "'feat_stride': 16", bottoms).replace(" python_param", f"{given} python_param")
    inputs = "".join(f'top: "b{i}" ' for i in range(bottoms))
    blobs = f'layer {{ name: "in" type: "Input" {inputs} input_param {{ shape {{ dim: 1 }} }} }}'
    with pytest.raises(LayerError, match=wrong):
        minicaffe.Net(parse_net(f'{blobs} layer {{ name: "x" {text} }}'), TEST)


def test_published_names_of_tops_are_taken() -> None:
    for names in (("rois", "scores"), ("rpn_rois", "rpn_scores"), ("m1@ssh_boxes", "m1@ssh_cls_prob")):
        assert all(wanted.fits(name) for name, wanted in zip(names, Proposal.top_names(2), strict=True))
    for prefix, targets in (("rpn_bbox", "rpn_bbox_targets"), ("m1@ssh_reg", "m1@ssh_reg_tragets")):
        names = ("rpn_labels", targets, f"{prefix}_inside_weights", f"{prefix}_outside_weights")
        assert all(wanted.fits(name) for name, wanted in zip(names, AnchorTarget.top_names(4), strict=True))
