"""Outputs of two runs of a net: rois matched where near ties changed places, real differences kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Error, Net
from minicaffe.formats.prototxt import parse_net
from minicaffe.porting.agreement import Run, difference, differences, matched, run_of

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
ROIS = np.array([[0, 3, 4, 40, 30], [0, 10, 8, 60, 44], [0, 0, 0, 71, 47], [0, 5, 1, 20, 100]], np.float32)
SCORES = np.array([0.9, 0.5, 0.50001, 0.1], np.float32)[[0, 2, 1, 3]]


def run(rois: np.ndarray, scores: np.ndarray = SCORES) -> Run:
    """A run whose y has a row for each roi."""
    y = rois[:, 1:4].sum(axis=1, keepdims=True)
    return Run({"rois": rois, "y": y, "z": np.arange(4.0)}, {"rois": scores}, {"rois": "rois", "y": "rois"})


def test_two_that_changed_places_are_compared_in_one_order() -> None:
    swapped = ROIS[[0, 2, 1, 3]] + np.float32(0.002)
    ours = run(ROIS)
    found = {one.name: one for one in differences(ours, {**run(swapped).blobs, "z": np.arange(4.0)})}
    assert all(one.agrees for one in found.values())
    assert found["rois"].note == "2 proposals in another order (scores within 1.0e-05): outputs compared in the matched order"
    assert found["y"].largest == pytest.approx(0.006, rel=0.1) and not found["y"].note


def test_a_real_difference_fails_in_the_matched_order_too() -> None:
    theirs = run(ROIS[[0, 2, 1, 3]]).blobs
    theirs["y"] = theirs["y"] + np.float32([0, 0, 9, 0])[:, None]
    found = {one.name: one for one in differences(run(ROIS), theirs)}
    assert found["rois"].agrees and not found["y"].agrees and found["y"].largest == pytest.approx(9)


def test_what_does_not_come_of_the_rois_keeps_its_order() -> None:
    theirs = run(ROIS[[0, 2, 1, 3]]).blobs | {"z": np.arange(4.0)[[0, 2, 1, 3]]}
    assert {one.name: one.agrees for one in differences(run(ROIS), theirs)} == {"rois": True, "y": True, "z": False}


def test_an_order_that_the_scores_do_not_explain() -> None:
    found = differences(run(ROIS), run(ROIS[[1, 0, 2, 3]]).blobs)
    assert not found[0].agrees and not found[1].agrees
    assert found[0].note == "2 proposals in another order (scores within 4.0e-01), which are not near ties"


def test_a_roi_without_counterpart() -> None:
    theirs = ROIS[[0, 2, 1, 3]].copy()
    theirs[1, 2] += 5
    order, note = matched(ROIS, theirs, SCORES)
    assert order is None and note == "1 of 4 proposals have no counterpart within 0.01 pixels"
    theirs[1:3] = np.nan
    assert matched(ROIS, theirs, SCORES)[0] is None
    assert not differences(run(ROIS), {"rois": theirs})[0].agrees


def test_the_same_roi_twice_goes_once_to_each() -> None:
    ours = ROIS[[0, 1, 2, 1]]
    order, _ = matched(ours, ours[[1, 0, 3, 2]], np.full(4, 0.5, np.float32))
    assert order is not None and sorted(order) == [0, 1, 2, 3]
    np.testing.assert_array_equal(ours[[1, 0, 3, 2]][order], ours)


def test_another_number_of_rois() -> None:
    found = differences(run(ROIS), run(ROIS[:3], SCORES[:3]).blobs)
    assert [one.agrees for one in found[:2]] == [False, False] and found[1].other_shape == (3, 1)
    with pytest.raises(Error, match="output q is not a blob of the net"):
        differences(run(ROIS), {"q": ROIS})


def test_differences_of_nan_and_of_shapes() -> None:
    ours = np.array([1.0, np.nan, 4.0], np.float32)
    found = difference("y", ours, np.array([1.0, np.nan, 4.5], np.float32))
    assert (found.largest, found.relative, found.agrees) == (0.5, 0.125, False)
    assert difference("y", ours, ours).agrees
    assert difference("y", ours, ours[:2]).largest == np.inf
    assert difference("y", ours, np.zeros(3, np.float32)).largest == np.inf


@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_a_detectors_proposals_and_what_comes_of_them(kind: str) -> None:
    net = Net(SHAPES / kind / "test.prototxt", TEST, weights=SHAPES / kind / f"shapes_{kind}.caffemodel")
    net.blobs["data"].data[...] = 40 * np.random.default_rng(0).standard_normal(net.blobs["data"].shape)
    net.blobs["im_info"].data[...] = (*net.blobs["data"].shape[2:], 1)
    ours = run_of(net, ["cls_prob", "bbox_pred"])
    rois, scores = ours.blobs["rois"], ours.scores["rois"]
    assert len(rois) == len(scores) == len(ours.blobs["cls_prob"]) and (np.diff(scores) <= 0).all()
    assert {"rois", "cls_prob", "bbox_pred"} <= set(ours.made_of) and "conv1" not in ours.made_of
    i = int(np.argmax(np.diff(scores)))  # the nearest tie
    other = np.arange(len(rois))
    other[[i, i + 1]] = i + 1, i
    assert all(one.agrees for one in differences(ours, {name: array[other] for name, array in ours.blobs.items()}))


def test_the_inputs_stay() -> None:
    text = 'input: "x" input_shape { dim: 3 }'
    net = Net(parse_net(text + 'layer { name: "r" type: "Power" bottom: "x" top: "x" power_param { scale: 2 } }'))
    net.blobs["x"].data[...] = [1, 2, 3]
    assert run_of(net, ["x"]).blobs["x"].tolist() == [2, 4, 6]
    assert net.blobs["x"].data.tolist() == [1, 2, 3]
