"""Detection around a net: tiny nets whose outputs are known, each rule worked by hand."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from coloured import CENTRED, COLOURED, MEANS, check_planes
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.settings import DetectionSettings, TestSettings
from minicaffe.detection.detect import Detections, detect, draw, pick, scaled_proposals, score_boxes, to_json
from minicaffe.detection.region_features import Choice, region_features
from minicaffe.errors import Error
from minicaffe.mode import TEST
from minicaffe.net import Net

# 90 x 60 pixels at a short side of 120: scale 2.
SETTINGS = dataclasses.replace(DetectionSettings(), test=TestSettings(scales=(120,), max_size=200))
IMAGE = np.random.default_rng(5).integers(0, 256, (60, 90, 3), dtype=np.uint8)

ROIS = """
input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }
input: "rois" input_shape { dim: 1 dim: 5 }
layer { name: "score" type: "InnerProduct" bottom: "rois" top: "cls_score" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" }
layer { name: "bbox" type: "InnerProduct" bottom: "rois" top: "bbox_pred" inner_product_param { num_output: %d } }
layer { name: "rest" type: "Silence" bottom: "data" }
"""


def rois_net(tmp_path, outputs=12, text=ROIS):
    path = tmp_path / "net.prototxt"
    path.write_text(text % outputs if "%d" in text else text)
    net = Net(path, TEST)
    for name in ("score", "bbox"):
        for blob in net.params[name]:
            blob.data[...] = 0
    return net


def test_rois_go_in_scaled_and_boxes_come_out_in_the_images_pixels(tmp_path):
    net = rois_net(tmp_path)
    net.params["score"][1].data[...] = np.log([0.2, 0.5, 0.3])
    scores, boxes = score_boxes(net, IMAGE, settings=SETTINGS, proposals=[[10, 5, 29, 24]])
    assert net.blobs["data"].shape == (1, 3, 120, 180)
    np.testing.assert_allclose(net.blobs["rois"].data, [[0, 20, 10, 58, 48]])
    np.testing.assert_allclose(scores, [[0.2, 0.5, 0.3]], rtol=1e-6)
    # The originals' inverse takes half of width x2 - x1 + 1 off both sides of the centre, so that x2, y2 end 1 further.
    np.testing.assert_allclose(boxes, [[[10, 5, 30, 25]] * 3])


def test_a_box_for_each_class_is_moved_by_its_own_deltas_and_clipped(tmp_path):
    net = rois_net(tmp_path)
    net.params["bbox"][1].data[4:8] = [0.5, 0, 0, 0]
    net.params["bbox"][1].data[8:12] = [0, 0, np.log(100), np.log(100)]
    _, boxes = score_boxes(net, IMAGE, settings=SETTINGS, proposals=[[10, 5, 29, 24]])
    np.testing.assert_allclose(boxes, [[[10, 5, 30, 25], [20, 5, 40, 25], [0, 0, 89, 59]]], rtol=1e-5)


def test_a_class_agnostic_net_has_one_box_for_all(tmp_path):
    net = rois_net(tmp_path, 8)
    net.params["bbox"][1].data[...] = [9, 9, 9, 9, 0.5, 0, 0, 0]
    _, boxes = score_boxes(net, IMAGE, settings=SETTINGS, proposals=[[10, 5, 29, 24]])
    np.testing.assert_allclose(boxes, [[[20, 5, 40, 25]] * 3])


def test_without_box_regression_the_rois_are_the_boxes(tmp_path):
    net = rois_net(tmp_path)
    plain = dataclasses.replace(SETTINGS, test=dataclasses.replace(SETTINGS.test, bbox_reg=False))
    _, boxes = score_boxes(net, IMAGE, settings=plain, proposals=[[10, 5, 29, 24]])
    np.testing.assert_allclose(boxes, [[[10, 5, 29, 24]] * 3])


def test_sides_that_are_multiples_have_a_scale_each(tmp_path):
    net = rois_net(tmp_path)
    wide = dataclasses.replace(SETTINGS, test=dataclasses.replace(SETTINGS.test, scale_multiple_of=32, bbox_reg=False))
    _, boxes = score_boxes(net, IMAGE, settings=wide, proposals=[[10, 5, 29, 24]])
    assert net.blobs["data"].shape == (1, 3, 96, 160)
    x, y = 160 / 90, 96 / 60
    np.testing.assert_allclose(net.blobs["rois"].data, [[0, 10 * x, 5 * y, 29 * x, 24 * y]], rtol=1e-6)
    np.testing.assert_allclose(boxes, [[[10, 5, 29, 24]] * 3], rtol=1e-6)


def test_proposals_on_the_same_cells_run_once_and_come_back_in_order(tmp_path):
    net = rois_net(tmp_path)
    net.params["score"][0].data[1, 1] = 1e-2
    proposals = [[40, 5, 60, 30], [0, 0, 9, 9], [40.5, 5, 60, 30]]
    scores, boxes = score_boxes(net, IMAGE, settings=SETTINGS, proposals=proposals)
    assert net.blobs["rois"].shape == (2, 5) and scores.shape == (3, 3) and boxes.shape == (3, 3, 4)
    assert scores[0, 1] == scores[2, 1] > scores[1, 1]
    np.testing.assert_allclose(boxes[1, 0], [0, 0, 10, 10])


@given(st.lists(st.tuples(*[st.integers(0, 300)] * 4), min_size=1, max_size=20), st.sampled_from([0, 1 / 16, 1.0]))
def test_deduplicated_rois_stand_for_every_proposal(boxes, dedup):
    rois, again = scaled_proposals(np.array(boxes, np.float32), 2.0, dedup)
    apart = np.abs(rois[again][:, 1:] - 2 * np.array(boxes)).max()
    assert apart <= (1 / dedup if dedup else 0) and len(rois) <= len(boxes)


def test_no_proposals_no_detections(tmp_path):
    assert len(detect(rois_net(tmp_path), IMAGE, settings=SETTINGS, proposals=np.zeros((0, 4)))) == 0


def test_pick_suppresses_within_a_class_and_ranks_over_all():
    boxes = np.array([[0, 0, 9, 9], [1, 0, 10, 9], [40, 40, 49, 49]], np.float32)
    boxes = np.repeat(boxes[:, None], 3, axis=1)
    scores = np.array([[0.1, 0.8, 0.1], [0.0, 0.3, 0.7], [0.8, 0.15, 0.04]], np.float32)
    found = pick(scores, boxes, nms_threshold=0.3, threshold=0.12)
    assert found.classes.tolist() == [1, 2, 1]
    np.testing.assert_allclose(found.scores, [0.8, 0.7, 0.15])
    np.testing.assert_allclose(found.boxes, boxes[[0, 1, 2], 0])
    assert len(pick(scores, boxes, threshold=0.12, max_detections=2)) == 2


def test_json_and_names():
    found = Detections(np.array([[1.04, 2, 3, 4]], np.float32), np.array([0.87654], np.float32), np.array([2]))
    named = to_json(found, ["__background__", "circle", "square"])
    assert named == [{"class": "square", "class_index": 2, "score": 0.8765, "box": [1.0, 2.0, 3.0, 4.0]}]
    assert json.loads(json.dumps(to_json(found)))[0]["class"] == "class 2"


def test_draw_frames_the_box_and_leaves_the_image_alone():
    image = np.zeros((60, 90, 3), np.uint8)
    found = Detections(np.array([[20, 30, 70, 55]], np.float32), np.array([0.9], np.float32), np.array([1]))
    picture = np.asarray(draw(image, found, ["__background__", "circle"]))
    assert picture.shape == image.shape and image.max() == 0
    assert (picture[55, 20:71] == (0xE6, 0x19, 0x4B)).all()
    assert picture[45, 40].max() == 0


def test_draw_keeps_labels_inside():
    image = np.zeros((40, 200, 3), np.uint8)
    boxes = np.array([[150, 2, 199, 39], [0, 0, 199, 39]], np.float32)
    picture = np.asarray(draw(image, Detections(boxes, np.array([0.9, 0.8], np.float32), np.array([1, 2]))))
    assert (picture > 200).all(axis=2).any()


def test_draw_takes_any_box_and_any_name():
    boxes = np.array([[30, 30, 5, 5], [-1e30, 2, 1e30, 9]], np.float32)
    names = ["__background__", "x" * 5_000_000, "a\n" * 100_000]
    found = Detections(boxes, np.array([0.9, 0.8], np.float32), np.array([1, 2]))
    assert draw(np.zeros((40, 50, 3), np.uint8), found, names).size == (50, 40)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_no_number_is_not_dropped(tmp_path, value):
    net = rois_net(tmp_path)
    net.params["score"][1].data[1] = value
    wanted = 'scores that are NaN or infinite in "cls_prob": minicaffe.check_finite finds the first such layer'
    with pytest.raises(Error, match=wanted), np.errstate(invalid="ignore"):
        detect(net, IMAGE, settings=SETTINGS, proposals=[[10, 5, 29, 24]])
    with pytest.raises(Error, match=wanted), np.errstate(invalid="ignore"):
        region_features(net, IMAGE, Choice("bbox_pred"), proposals=[[10, 5, 29, 24]])


@pytest.mark.parametrize(("corner", "score"), [(np.nan, 0.9), (9, np.inf)])
def test_boxes_and_scores_are_finite(corner, score):
    boxes = np.array([[[0, 0, 9, 9], [0, 0, corner, 9]]], np.float32)
    with pytest.raises(Error, match=r"the net gives boxes or scores that are NaN or infinite: minicaffe\.check_finite finds"):
        pick(np.array([[0.1, score]], np.float32), boxes)


def test_a_net_that_is_no_detector(tmp_path):
    path = tmp_path / "plain.prototxt"
    path.write_text('name: "plain" input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }')
    with pytest.raises(
        Error, match=r"plain\.prototxt: a detector's inputs are data and im_info, or data and rois; this net's are data"
    ):
        detect(Net(path, TEST), IMAGE)
    path.write_text('input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 } input: "rois" input_shape { dim: 1 dim: 5 }')
    with pytest.raises(Error, match='a detector has a blob "cls_prob"; this net has none'):
        detect(Net(path, TEST), IMAGE, proposals=[[0, 0, 9, 9]])


def test_proposals_missing_malformed_or_not_wanted(tmp_path):
    net = rois_net(tmp_path)
    with pytest.raises(Error, match=r"this net takes rois: give it proposals, boxes \(R, 4\)"):
        detect(net, IMAGE, settings=SETTINGS)
    with pytest.raises(Error, match=r"proposals must have the shape \(R, 4\), got \(1, 5\)"):
        detect(net, IMAGE, settings=SETTINGS, proposals=[[0, 0, 0, 9, 9]])
    text = ROIS % 12 + 'input: "im_info" input_shape { dim: 1 dim: 3 } '
    text = text.replace('input: "rois" input_shape { dim: 1 dim: 5 }', "")
    text = 'layer { name: "rois" type: "DummyData" top: "rois" dummy_data_param { shape { dim: 1 dim: 5 } } } ' + text
    net = rois_net(tmp_path, text=text.replace("%", ""))
    with pytest.raises(Error, match="this net proposes its own rois and takes no proposals"):
        detect(net, IMAGE, settings=SETTINGS, proposals=[[0, 0, 9, 9]])
    assert len(detect(net, IMAGE, settings=SETTINGS)) > 0


def test_boxes_of_another_number_of_classes(tmp_path):
    with pytest.raises(Error, match=r"bbox_pred has 16 values for each roi; the 3 classes of cls_prob need 12 .* or 8"):
        detect(rois_net(tmp_path, 16), IMAGE, settings=SETTINGS, proposals=[[0, 0, 9, 9]])


def test_what_the_net_is_given(tmp_path):
    net = rois_net(tmp_path)
    settings = dataclasses.replace(SETTINGS, pixel_means=MEANS)
    score_boxes(net, COLOURED, settings=settings, proposals=[[10, 5, 29, 24]])
    assert net.blobs["data"].shape == (1, 3, 120, 180)
    check_planes(net, "data", CENTRED)
