"""DetectionOutput."""

from __future__ import annotations

import numpy as np
import pytest
from layer_case import LayerCase
from ssd_reference import made_boxes, plain_nms, priors_blob

from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.layers.ssd.box_codes import CENTER_SIZE, Priors, decode

CORNERS = np.array([[0.0, 0.0, 0.5, 0.5], [0.1, 0.0, 0.6, 0.5], [0.5, 0.5, 1.0, 1.0]])


def text(inside: str) -> str:
    return f'type: "DetectionOutput" detection_output_param {{ {inside} }}'


def run(inside: str, loc: np.ndarray, conf: np.ndarray, boxes: np.ndarray = CORNERS, dtype: type = np.float64) -> np.ndarray:
    flat = [x.reshape(len(x), x.shape[1] * x.shape[2]) for x in (loc, conf)]
    case = LayerCase(text(inside), *flat, priors_blob(boxes), dtype=dtype)
    (y,) = case.forward()
    assert y.shape[:2] == (1, 1) and y.shape[3] == 7 and y.dtype == dtype
    return y[0, 0]


CONF = np.array([[[0.1, 0.9], [0.2, 0.8], [0.4, 0.6]]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """Priors 0 and 1 overlap by 2/3: the better stays; its code moves x by 0.1 * 1 of the corner. Image 1 has nothing."""
    loc = np.zeros((2, 3, 4))
    loc[0, 0] = [1, 0, 1, 0]
    conf = np.concatenate([CONF, np.zeros((1, 3, 2))])
    found = run("num_classes: 2 nms_param { nms_threshold: 0.5 } confidence_threshold: 0.5", loc, conf, dtype=dtype)
    np.testing.assert_allclose(found, [[0, 1, 0.9, 0.1, 0, 0.6, 0.5], [0, 1, 0.6, 0.5, 0.5, 1, 1]], rtol=1e-6)
    several = run("num_classes: 2 nms_param { nms_threshold: 0.7 } confidence_threshold: 0.5", np.zeros((1, 3, 4)), CONF)
    np.testing.assert_allclose(several[:, 2], [0.9, 0.8, 0.6])


def test_nothing_found_is_a_row_of_minus_one_for_each_image() -> None:
    found = run("num_classes: 2 confidence_threshold: 0.95", np.zeros((2, 3, 4)), np.repeat(CONF, 2, axis=0))
    np.testing.assert_array_equal(found, [[0, -1, -1, -1, -1, -1, -1], [1, -1, -1, -1, -1, -1, -1]])


def test_no_images() -> None:
    assert run("num_classes: 2", np.zeros((0, 3, 4)), np.zeros((0, 3, 2))).shape == (0, 7)


def test_top_k_is_before_suppression_and_keep_top_k_after_it_over_all_classes() -> None:
    conf = np.array([[[0.0, 0.9, 0.2], [0.0, 0.8, 0.3], [0.0, 0.6, 0.7]]])
    inside = "num_classes: 3 nms_param { nms_threshold: 0.5 %s } %s"
    first = run(inside % ("top_k: 2", ""), np.zeros((1, 3, 4)), conf)
    np.testing.assert_allclose(first[:, 1:3], [[1, 0.9], [2, 0.7], [2, 0.3]])
    best = run(inside % ("", "keep_top_k: 2"), np.zeros((1, 3, 4)), conf)
    np.testing.assert_allclose(best[:, 1:3], [[1, 0.9], [2, 0.7]])
    none = run(inside % ("", "keep_top_k: 0"), np.zeros((1, 3, 4)), conf)
    assert (none[0, 1:] == -1).all()


def test_background_may_be_another_class_or_none() -> None:
    found = run("num_classes: 2 background_label_id: 1 confidence_threshold: 0.3", np.zeros((1, 3, 4)), CONF)
    np.testing.assert_allclose(found[:, 1:3], [[0, 0.4]])
    both = run("num_classes: 2 background_label_id: -1 confidence_threshold: 0.5", np.zeros((1, 3, 4)), 1 - CONF)
    assert set(both[:, 1]) == {0}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("in_target", [True, False])
def test_as_plain_loops(shared: bool, in_target: bool) -> None:
    """Two images, four classes, 25 priors."""
    random = np.random.default_rng(3)
    boxes = made_boxes(25)
    variances = random.uniform(0.1, 0.3, (25, 4))
    loc, conf = random.normal(size=(2, 25, 1 if shared else 4, 4)), random.uniform(size=(2, 25, 4))
    flags = f"share_location: {str(shared).lower()} variance_encoded_in_target: {str(in_target).lower()}"
    inside = (
        f"num_classes: 4 {flags} code_type: CENTER_SIZE confidence_threshold: 0.3 nms_param {{ nms_threshold: 0.3 top_k: 9 }}"
    )
    blob = np.stack([boxes.reshape(-1), variances.reshape(-1)])[None]
    case = LayerCase(text(inside), loc.reshape(2, -1), conf.reshape(2, -1), blob)
    expected = []
    for i in range(2):
        for k in range(1, 4):
            own = decode(loc[i, :, 0 if shared else k], Priors(boxes, variances), CENTER_SIZE, in_target)
            scores = conf[i, :, k]
            expected += [[i, k, scores[j], *own[j]] for j in plain_nms(own, scores, float(np.float32(0.3)), 0.3, 9)]
    np.testing.assert_allclose(case.forward()[0][0, 0], expected, rtol=1e-6)


def test_the_inputs_get_no_gradient_and_a_second_reshape() -> None:
    case = LayerCase(text("num_classes: 2"), np.zeros((1, 12)), CONF.reshape(1, -1), priors_blob(CORNERS))
    case.forward()
    assert all((diff == 0).all() for diff in case.backward())
    case.bottom[0].reshape(2, 8)
    case.bottom[1].reshape(2, 4)
    case.bottom[2].reshape(1, 2, 8)
    assert case.forward()[0].shape[3] == 7


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("", "needs num_classes > 0"),
        ("num_classes: 1000001", "num_classes must be at most 1000000, got 1000001"),
        ("num_classes: 2 nms_param { nms_threshold: -1 }", "nms_threshold must be >= 0, got -1"),
        ("num_classes: 2 nms_param { eta: 0 }", "eta must be above 0 and at most 1, got 0"),
        ('num_classes: 2 visualize: true save_file: "a.png"', "visualize needs the images as a fourth bottom"),
        (
            'num_classes: 2 save_output_param { output_directory: "o" label_map_file: "m" name_size_file: "n" }',
            "n: no such file",
        ),
        ("num_classes: 3", r"bottom 1 of shape \(1, 6\) does not hold 3 priors x 3 values for each of 1 images"),
        ("num_classes: 1", r"bottom 1 .* 3 priors x 1 values for each of 1 images; TextBoxes' PriorBox makes each box twice"),
        ("num_classes: 2 share_location: false", r"bottom 0 of shape \(1, 12\) does not hold 3 priors x 8 values"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='DetectionOutput layer "layer": ' + message):
        run(inside, np.zeros((1, 3, 4)), CONF)


def test_priors_of_faceboxes_name_the_fork() -> None:
    """Of 3 priors a cell, where loc and conf are for 21."""
    hint = r"does not hold 3 priors .*; FaceBoxes' PriorBox makes 21 boxes .*: give --fork faceboxes"
    with pytest.raises(LayerError, match=hint):
        run("num_classes: 2", np.zeros((1, 21, 4)), np.zeros((1, 21, 2)))


def test_a_label_map_alone_is_ignored() -> None:
    inside = 'num_classes: 2 save_output_param { label_map_file: "labelmap_voc.prototxt" }'
    assert len(run(inside, np.zeros((1, 3, 4)), CONF))


def test_what_cannot_be_done_is_said_once() -> None:
    with pytest.warns(PrototxtWarning, match='"layer": save_output_param writes nothing without a label_map_file and a name_'):
        run('num_classes: 2 save_output_param { output_directory: "absent" }', np.zeros((1, 3, 4)), CONF)
    with pytest.warns(PrototxtWarning, match='"layer": visualize shows nothing: minicaffe opens no window; with a save_file'):
        run("num_classes: 2 visualize: true", np.zeros((1, 3, 4)), CONF)


def test_priors_of_a_wrong_shape_or_without_an_area() -> None:
    with pytest.raises(LayerError, match=r"the priors must have the shape \(1, 2, P \* 4\), got \(2, 12\)"):
        LayerCase(text("num_classes: 2"), np.zeros((1, 12)), np.zeros((1, 6)), np.zeros((2, 12)))
    with pytest.raises(LayerError, match=r"prior 1 has no width or height: 0\.3 0 0\.3 0\.5"):
        boxes = np.array([[0, 0, 0.5, 0.5], [0.3, 0, 0.3, 0.5], [0.5, 0.5, 1, 1]])
        run("num_classes: 2 code_type: CENTER_SIZE", np.zeros((1, 3, 4)), CONF, boxes)


# RefineDet's bottoms.


def refine(inside: str, *arm: np.ndarray, loc: np.ndarray | None = None) -> np.ndarray:
    given = np.zeros((1, 12)) if loc is None else loc
    case = LayerCase(text(f"num_classes: 2 {inside}"), given, CONF.reshape(1, 6), priors_blob(CORNERS), *arm)
    return case.forward()[0][0, 0]


OBJECTS = np.array([[0.6, 0.4, 0.3, 0.7, 0.5, 0.5]])


def test_objectness_below_the_score_is_background() -> None:
    """The first prior's 0.4 is below 0.5, the third's is not; a fourth bottom (N, 2 P) is arm_conf."""
    found = refine("objectness_score: 0.5 confidence_threshold: 0.01", OBJECTS)
    np.testing.assert_allclose(found, [[0, 1, 0.8, *CORNERS[1]], [0, 1, 0.6, *CORNERS[2]]])
    assert len(refine("confidence_threshold: 0.01 nms_param { nms_threshold: 1 }", OBJECTS)) == 3, "0.01 is the default"
    other = refine("background_label_id: 1 objectness_score: 0.5 nms_param { nms_threshold: 1 }", OBJECTS)
    np.testing.assert_allclose(other[:, 2], [0.4, 0.2, 0])


def test_arm_loc_refines_the_priors_first() -> None:
    """Codes of 1 move each corner by 0.1, the variance: first the prior, then what it has become."""
    arm, loc = np.zeros((1, 12)), np.zeros((1, 12))
    arm[0, :4], loc[0, :4] = 1, [1, 0, 1, 0]
    found = refine("nms_param { nms_threshold: 1 }", np.ones((1, 6)), arm, loc=loc)
    np.testing.assert_allclose(found[0], [0, 1, 0.9, 0.2, 0.1, 0.7, 0.6], atol=1e-12)
    np.testing.assert_allclose(found[1, 3:], CORNERS[1])


@pytest.mark.parametrize(
    ("inside", "arm", "message"),
    [
        ("", [(1, 4)], r"bottom 3 of shape \(1, 4\) does not hold 3 priors x 2 values for each of 1 images"),
        ("", [(1, 6), (1, 9)], r"bottom 4 of shape \(1, 9\) does not hold 3 priors x 4 values for each of 1 images"),
        ("visualize: true", [(1, 6)], "visualize needs the images as the fourth bottom, where RefineDet has arm_conf"),
    ],
)
def test_errors_of_refinedets_bottoms(inside: str, arm: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        refine(inside, *(np.zeros(shape) for shape in arm))


def test_refinedets_bottoms_need_share_location() -> None:
    with pytest.raises(LayerError, match="RefineDet's bottoms need share_location"):
        shapes = (np.zeros((1, 24)), np.zeros((1, 6)), priors_blob(CORNERS), np.zeros((1, 6)))
        LayerCase(text("num_classes: 2 share_location: false"), *shapes)


# caffe-yolov2's one bottom.


def cells(*rows: list[float]) -> np.ndarray:
    """A map (1, 7, 2, 2) with one box of 5 + 2 numbers in each cell, row after row."""
    return np.array(rows, float).T.reshape(1, 7, 2, 2)


LOW = [0.0, 0, 0, 0, -99, 0, 0]
REGION = "side: 2 num_box: 1 num_classes: 2 biases: 1 biases: 1"


def of_cells(inside: str) -> str:
    return text(inside) + ' bottom: "cells"'


def test_cells_by_hand() -> None:
    """A cell is half the image. The first cell's box fills it, its class 1 scores 3/4 of the objectness 1/2."""
    x = cells([0, 0, 0, 0, 0, 0, np.log(3)], LOW, LOW, [0, 0, np.log(2), 0, 99, np.log(4), 0])
    found = LayerCase(of_cells(REGION), x).forward()[0][0, 0]
    np.testing.assert_allclose(found, [[0, 1, 0.375, 0.25, 0.25, 0.5, 0.5], [0, 0, 0.8, 0.75, 0.75, 1, 0.5]])
    assert LayerCase(of_cells(REGION + " confidence_threshold: 0.5"), x).forward()[0].shape == (1, 1, 1, 7)


def test_a_cells_box_goes_for_an_earlier_one_whatever_its_score() -> None:
    """Boxes much larger than the image are one when clipped to it."""
    large = [0, 0, 9, 9, 0, 0, 0]
    found = LayerCase(of_cells(REGION), cells(LOW, large, [*large[:4], 99, 99, 0], LOW)).forward()[0][0, 0]
    assert found[:, 2].tolist() == [0.25]


def test_no_cell() -> None:
    assert LayerCase(of_cells(REGION), cells(LOW, LOW, LOW, LOW)).forward()[0].tolist() == [[[[0, *[-1] * 6]]]]


@pytest.mark.parametrize(
    ("inside", "shape", "message"),
    [
        ("side: 2 num_box: 1", (1, 7, 2, 2), "needs num_classes > 0 and num_box > 0"),
        (REGION + " coords: 5", (1, 7, 2, 2), "coords must be 4, got 5"),
        (REGION + " biases: 1", (1, 7, 2, 2), "biases must be pairs of a width and a height, got 3 numbers"),
        (REGION + " biases: 1 biases: 1", (1, 7, 2, 2), "2 anchors given in biases for num_box 1"),
        (REGION, (1, 7, 3, 3), r"the bottom must have the shape \(1, 7, 2, 2\), 1 boxes of 5 \+ 2 .*; got \(1, 7, 3, 3\)"),
        (REGION, (2, 7, 2, 2), r"got \(2, 7, 2, 2\)"),
    ],
)
def test_errors_of_cells(inside: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(of_cells(inside), np.zeros(shape))


def test_the_bottoms_tell_whose_it_is() -> None:
    def choice(*bottoms: np.ndarray, inside: str = "num_classes: 2") -> str:
        return str(LayerCase(text(inside), *bottoms).layer.choice)

    ssds = np.zeros((1, 12)), np.zeros((1, 6)), priors_blob(CORNERS)
    assert choice(*ssds) == "DetectionOutput of SSD: 3 bottoms"
    assert choice(*ssds, np.zeros((1, 6)), np.zeros((1, 12))) == "DetectionOutput of RefineDet: 5 bottoms"
    choice_of_cells = LayerCase(of_cells(REGION), np.zeros((1, 7, 2, 2))).layer.choice
    assert str(choice_of_cells) == "DetectionOutput of caffe-yolov2: 1 bottom"
    with pytest.raises(LayerError, match=r"takes loc, conf and priors as bottoms \(SSD's\), or one map of cells"):
        choice(*ssds[:2])
    with pytest.raises(LayerError, match=r"takes loc, conf and priors .* got 1"):  # a layer alone, without names of bottoms
        choice(np.zeros((1, 7, 2, 2)))
    with pytest.raises(LayerError, match=r"biases is for one bottom \(YOLOv2's\), this is SSD's with 3"):
        choice(*ssds, inside="num_classes: 2 biases: 1")
