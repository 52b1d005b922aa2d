"""The numbers that the texts of lessons 3 and 4 state are those of the net."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from shapes_scene import Scene, scene

import minicaffe
from minicaffe import ops
from minicaffe.errors import Error
from minicaffe.tutorials import figures

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


def text(name: str) -> str:
    """Return a notebook's text with single spaces."""
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return " ".join(" ".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown").split())


ANCHORS, PROPOSALS = text("3-anchors"), text("4-proposals")


@pytest.fixture(scope="module")
def shapes() -> Scene:
    return scene()


def overlaps(shapes: Scene) -> np.ndarray:
    return ops.bbox_overlaps(shapes.anchors, shapes.truth)


def test_the_map(shapes: Scene) -> None:
    rows, columns = shapes.map
    assert f"that its short side is {min(shapes.size):g} pixels" in ANCHORS
    assert (
        f"of {rows} x {columns} cells from it. Their [stride](../glossary.md#stride) is {shapes.layer.stride} pixels" in ANCHORS
    )
    count = len(shapes.layer.anchors)
    assert f"{rows} · {columns} · {count} = {len(shapes.anchors)}" in ANCHORS
    assert f"k + {count} · ({columns} r + c)" in ANCHORS
    assert f"Follow {len(shapes.anchors)} scored anchors" in PROPOSALS


def test_the_sides_of_the_anchors(shapes: Scene) -> None:
    sides = shapes.layer.anchors[:, 2:] - shapes.layer.anchors[:, :2] + 1
    *squares, last = (f"{w:g}" for w, h in sides if w == h)
    assert f"The squares are {', '.join(squares)} and {last} pixels wide." in ANCHORS
    assert f"between {sides[:, 0].min():g} and {sides[:, 0].max():g} pixels wide" in ANCHORS
    growth = np.array([*squares[1:], last], float) / np.array(squares, float)
    assert "by about 1.6" in ANCHORS and growth == pytest.approx(1.6, abs=0.05)
    middle = (shapes.layer.anchors[:, :2] + shapes.layer.anchors[:, 2:]) / 2
    assert "x = 8 c + 7.5" in ANCHORS and np.all(middle == 7.5)


def test_the_anchors_that_fit(shapes: Scene) -> None:
    best = overlaps(shapes).max(axis=0)
    assert f"reach an IoU of {best.min():.2f} to {best.max():.2f}" in ANCHORS
    good = overlaps(shapes).max(axis=1) >= 0.6
    assert f"Only {good.sum()} anchors of {len(good)} have an IoU of at least 0.6" in ANCHORS
    assert f"{good.sum()} fit a shape with an IoU of at least 0.6" in PROPOSALS
    moved = ops.bbox_overlaps(ops.bbox_transform_inv(shapes.anchors, shapes.deltas)[good], shapes.truth).max(axis=1)
    before = overlaps(shapes).max(axis=1)[good].mean()
    assert f"rises from {before:.2f} to {moved.mean():.2f}" in ANCHORS
    assert f"sure of {np.count_nonzero(shapes.scores[good] > 0.9)} of the {good.sum()} anchors" in ANCHORS


def test_the_anchors_at_the_small_circle(shapes: Scene) -> None:
    place = int(overlaps(shapes)[:, 7].argmax())
    assert shapes.names[7] == "circle" and place % 18 == 7  # 25.6 pixels
    assert np.all(shapes.scores[[place, place + 1]] > 0.99)
    assert f"That of 64 pixels is not: its objectness is {shapes.scores[place + 2]:.2f}" in ANCHORS
    small, large = (shapes.scores.reshape(-1, 18)[:, k] > 0.5 for k in (6, 11))
    assert f"in {small.sum()} cells, all on the two smallest shapes" in ANCHORS
    assert set(overlaps(shapes)[6::18][small].argmax(axis=1)) == {6, 7}
    assert f"That of 168 pixels has it in {large.sum()} cells" in ANCHORS


def sure_parts(shapes: Scene, part: float) -> list[float]:
    """Return, for each shape, the part of cells with an objectness above 0.9 in the middle of its box."""
    sure = shapes.scores.reshape(*shapes.map, 18).max(axis=2) > 0.9
    y, x = (8 * np.arange(count) + 7.5 for count in shapes.map)
    parts = []
    for x1, y1, x2, y2 in shapes.truth:
        rows = abs(y - (y1 + y2) / 2) <= (y2 - y1) / 2 * part
        parts.append(float(sure[rows][:, abs(x - (x1 + x2) / 2) <= (x2 - x1) / 2 * part].mean()))
    return parts


def test_the_cells_that_are_sure(shapes: Scene) -> None:
    middle, whole = sure_parts(shapes, 0.5), sure_parts(shapes, 1)
    assert f"middle half of the boxes, {min(middle):.2f} to {max(middle):.2f} of the cells are sure" in ANCHORS
    assert f"Of all cells of a box, only {min(whole):.2f} to {max(whole):.2f} are" in ANCHORS


def inside(shapes: Scene) -> np.ndarray:
    """Return which anchors lie in the photo."""
    return (shapes.anchors[:, :2] >= 0).all(axis=1) & (shapes.anchors[:, 2:] < np.array(shapes.size)[::-1]).all(axis=1)


def test_the_frame(shapes: Scene) -> None:
    scores = shapes.scores.reshape(*shapes.map, 18)
    ring = np.ones(shapes.map, bool)
    ring[2:-2, 2:-2] = False
    sure = scores.max(axis=2)[ring] > 0.9
    assert f"have {ring.sum()} cells, and {sure.mean():.2f} of them are sure" in ANCHORS
    leaves = ~inside(shapes).reshape(*shapes.map, 18)[ring]
    best = scores[ring].argmax(axis=1)
    assert f"leaves the photo in {leaves[sure, best[sure]].mean():.2f} of the cases" in ANCHORS


def test_the_deltas_of_the_text() -> None:
    box, moved, half = np.array([[0.0, 0, 103, 103]]), np.array([[26.0, 0, 129, 103]]), np.array([[26.0, 0, 77, 103]])
    assert f"dx = 26 / 104 = {ops.bbox_transform(box, moved)[0, 0]:g}" in ANCHORS
    assert f"dw = ln(52 / 104) = {ops.bbox_transform(box, half)[0, 2]:.2f}".replace("-", "−") in ANCHORS
    assert ops.bbox_transform_inv(box, np.zeros((1, 4))).tolist() == [[0, 0, 104, 104]]
    assert "deltas of 0 make the box one pixel wider" in ANCHORS


def test_deltas_of_0_change_the_box(shapes: Scene) -> None:
    anchor = shapes.anchors[[(24 * shapes.map[1] + 30) * 18 + 10]]
    truth = shapes.truth[[shapes.names.index("triangle")]]
    fits = [ops.bbox_overlaps(boxes, truth)[0, 0] for boxes in (anchor, ops.bbox_transform_inv(anchor, np.zeros((1, 4))))]
    assert f"says {fits[0]:.3f} for this anchor, this one {fits[1]:.3f}, although all deltas are 0" in ANCHORS
    assert f"the figure's IoU was {fits[1]:.3f}" in ANCHORS
    first = shapes.layer.anchors[0]
    centre = first[0] + (first[2] - first[0] + 1) / 2
    assert f"now have their centre at {centre:g}, not at {(first[0] + first[2]) / 2:g}" in ANCHORS


def test_the_scores(shapes: Scene) -> None:
    sure = shapes.scores > 0.9
    assert f"{sure.sum()} anchors are sure of an object" in PROPOSALS
    assert f"Others, {np.count_nonzero(sure & ~inside(shapes))} of them, leave the photo" in PROPOSALS


def test_the_boxes_that_nms_sees(shapes: Scene) -> None:
    sides = shapes.boxes[:, 2:] - shapes.boxes[:, :2] + 1
    limits = shapes.layer.limits
    assert f"{limits.min_size:g} · {shapes.scale:.4f} = {limits.min_size * shapes.scale:.2f} pixels" in PROPOSALS
    assert f"Only {np.count_nonzero((sides < limits.min_size * shapes.scale).any(axis=1))} boxes are too small" in PROPOSALS
    seen = shapes.seen_by_nms()
    assert f"Number {len(seen)} has an objectness of {seen[-1, 4]:.2f}: no box above 0.5 is lost" in PROPOSALS


def test_the_steps_are_those_of_the_layer(shapes: Scene) -> None:
    limits = shapes.layer.limits
    assert f"keep the best {limits.pre_nms_top_n} by [objectness]" in PROPOSALS
    assert f"an IoU of more than {limits.nms_threshold:g}," in PROPOSALS
    assert f"keep the best {limits.post_nms_top_n} of the rest" in PROPOSALS


def test_nms_of_the_two_circles(shapes: Scene) -> None:
    circles = shapes.truth[2:4]
    assert f"overlap with an IoU of {ops.bbox_overlaps(circles[:1], circles[1:])[0, 0]:.2f}" in PROPOSALS
    seen = shapes.seen_by_nms()
    some = seen[ops.bbox_overlaps(seen[:, :4], circles).max(axis=1) > 0.4][:40]
    kept = {threshold: some[ops.nms(some, threshold), :4] for threshold in (0.1, 0.3, 0.5, 0.9)}
    assert len(kept[0.1]) == 1 and "A threshold of 0.1 drops a circle" in PROPOSALS
    for threshold in (0.3, 0.5):
        assert sorted(ops.bbox_overlaps(kept[threshold], circles).argmax(axis=1)) == [0, 1]
    assert f"0.9 keeps {len(kept[0.9])} boxes for two circles" in PROPOSALS


def test_the_rois(shapes: Scene) -> None:
    rois = shapes.net.blobs["rois"].data[:, 1:]
    fits = ops.bbox_overlaps(rois, shapes.truth)
    assert f"{len(rois)} boxes are left" in PROPOSALS
    good, best = np.count_nonzero(fits.max(axis=1) >= 0.5), fits.max(axis=0)
    assert f"{good} of them have an IoU of at least 0.5 with a shape" in PROPOSALS
    assert f"a roi with an IoU of {best.min():.2f} to {best.max():.2f}" in PROPOSALS
    seen = shapes.seen_by_nms()
    low, high = (seen[ops.nms(seen, threshold), :4] for threshold in (0.3, 0.9))
    worst = ops.bbox_overlaps(low, shapes.truth).max(axis=0).min()
    assert f"With 0.3 one shape has no box above {worst:.2f}" in PROPOSALS
    assert f"0.9 keeps {len(high)} boxes: more work" in PROPOSALS


def test_the_anchor_that_is_no_roi(shapes: Scene) -> None:
    assert shapes.scores[shapes.anchor(13, 39, 10)] > 0.99
    told = minicaffe.explain(shapes.net, "proposal", anchor=(13, 39, 10)).text(rows=2)
    assert "suppresses it" in told and " = 0.92" in told
    assert "overlaps it by 0.92" in PROPOSALS


def test_a_figure_needs_a_proposal_layer() -> None:
    net = minicaffe.Net(minicaffe.prototxt.parse_net('input: "x" input_shape { dim: 1 }', "x.prototxt"), minicaffe.TEST)
    with pytest.raises(Error, match=r"x.prototxt has no Proposal layer; the figure needs a net with an RPN"):
        figures.deltas(net, np.zeros((2, 3, 3), np.uint8), (0, 0), 0, (0, 0, 1, 1))
