"""DetectNet's Python layers: plain loops, written from clustering.py, mean_ap.py and OpenCV's groupRectangles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import TEST, Net
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.forks.detectnet.rectangles import group_rectangles

pytestmark = pytest.mark.usefixtures("device")

Rows = list[list[int]]


def python_layer(name: str, param_str: str = "", bottoms: int = 2, tops: int = 1) -> str:
    module = f"caffe.layers.detectnet.{'clustering' if name.startswith('Cluster') else 'mean_ap'}"
    names = "".join(f' bottom: "b{i}"' for i in range(bottoms)) + "".join(f' top: "t{i}"' for i in range(tops))
    return f'type: "Python"{names} python_param {{ module: "{module}" layer: "{name}" param_str: "{param_str}" }}'


def alike(a: list[int], b: list[int], eps: float) -> bool:
    delta = eps * (min(a[2], b[2]) + min(a[3], b[3])) * 0.5
    return (
        abs(a[0] - b[0]) <= delta
        and abs(a[1] - b[1]) <= delta
        and abs(a[0] + a[2] - b[0] - b[2]) <= delta
        and abs(a[1] + a[3] - b[1] - b[3]) <= delta
    )


def groups_by_loops(rectangles: Rows, threshold: int, eps: float) -> list[tuple[list[int], int]]:
    """Labels spread until nothing changes; then the means and the two rules by which groups are dropped."""
    labels = list(range(len(rectangles)))
    changed = True
    while changed:
        changed = False
        for i, a in enumerate(rectangles):
            for j, b in enumerate(rectangles):
                if alike(a, b, eps) and labels[j] < labels[i]:
                    labels[i], changed = labels[j], True
    means = []
    for label in sorted(set(labels)):
        own = [r for r, mine in zip(rectangles, labels, strict=True) if mine == label]
        s = np.float32(1) / np.float32(len(own))
        means.append(([round(float(np.float32(sum(r[k] for r in own)) * s)) for k in range(4)], len(own)))
    kept = []
    for i, (r1, n1) in enumerate(means):
        if n1 <= threshold:
            continue
        for j, (r2, n2) in enumerate(means):
            if j == i or n2 <= threshold:
                continue
            dx, dy = round(r2[2] * eps), round(r2[3] * eps)
            if (
                r1[0] >= r2[0] - dx
                and r1[1] >= r2[1] - dy
                and r1[0] + r1[2] <= r2[0] + r2[2] + dx
                and r1[1] + r1[3] <= r2[1] + r2[3] + dy
                and (n2 > max(3, n1) or n1 < 3)
            ):
                break
        else:
            kept.append((r1, n1))
    return kept


@settings(max_examples=300)
@given(
    rectangles=st.lists(st.lists(st.integers(-3, 40), min_size=4, max_size=4), min_size=1, max_size=14),
    copies=st.integers(1, 4),
    threshold=st.integers(1, 3),
    eps=st.sampled_from([0.02, 0.2, 0.5, 1.0]),
)
def test_groups_are_their_definition(rectangles: Rows, copies: int, threshold: int, eps: float) -> None:
    rectangles = rectangles * copies
    means, counts = group_rectangles(np.array(rectangles), threshold, eps)
    assert [(r, n) for r, n in zip(means.tolist(), counts.tolist(), strict=True)] == groups_by_loops(rectangles, threshold, eps)


def test_groups_by_hand() -> None:
    """Four rectangles by two's chain; a group of two; one inside the largest; and a group of one, which is dropped."""
    large = [[10, 10, 40, 40], [12, 10, 40, 40], [14, 10, 40, 40], [17, 10, 40, 41]]
    pair, inside, alone = [[200, 0, 20, 20], [201, 0, 20, 20]], [[25, 25, 8, 8], [25, 25, 8, 8]], [[300, 300, 9, 9]]
    means, counts = group_rectangles(np.array([*pair, *large, *inside, *alone]), 1, 0.1)
    assert means.tolist() == [[200, 0, 20, 20], [13, 10, 40, 40]] and counts.tolist() == [2, 4]
    means, counts = group_rectangles(np.array(alone * 2), 0, 0.1)
    assert means.tolist() == alone * 2 and counts.tolist() == [1, 1]


def boxes_by_loops(coverage: np.ndarray, boxes: np.ndarray, least: float, cell: tuple[int, int]) -> list[list[float]]:
    found = []
    for y in range(coverage.shape[0]):
        for x in range(coverage.shape[1]):
            if coverage[y, x] >= least:
                left, upper = x * cell[1], y * cell[0]
                found.append([boxes[k, y, x] + (left, upper)[k % 2] for k in range(4)])
    return found


GRID = (2, 3, 4, 5)
"""Images, classes, rows and columns."""


def maps(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and boxes: each cell's box is that of one of two objects, nearly."""
    random = np.random.default_rng(seed)
    coverage = random.uniform(0, 1, GRID)
    boxes = np.zeros((GRID[0], 4, *GRID[2:]))
    for n, _, y, x in np.ndindex(*GRID):
        ends = np.array([4, 5, 30, 40] if random.uniform() < 0.5 else [20, 8, 44, 36]) + random.uniform(-1, 1, 4)
        boxes[n, :, y, x] = ends - [x * 10, y * 12, x * 10, y * 12]
    return coverage, boxes


@pytest.mark.parametrize("height", [0, 25, 31])
def test_detections_are_groups_of_the_cells_boxes(height: int) -> None:
    """An image of 54 x 51 pixels and a stride of 10: five by five cells of 10 x 10, of which the maps have four rows."""
    coverage, boxes = maps(0)
    text = python_layer("ClusterDetections", f"54,51, 10,0.4,1,0.2,{height},3,7", tops=3)
    y = LayerCase(text, coverage, boxes, tops=3).forward()
    assert len(y) == 3 and all(top.shape == (2, 7, 5) for top in y)
    some = 0
    for c, n in np.ndindex(3, 2):
        proposals = boxes_by_loops(coverage[n, c], boxes[n], 0.4, (10, 10))
        found = groups_by_loops([[int(v) for v in row] for row in proposals], 1, 0.2)
        rows = [[*r, math.log(count)] for r, count in found if r[3] - r[1] >= height]
        some += len(rows)
        wanted = np.zeros((7, 5))
        wanted[: len(rows)] = np.array(rows, np.float16).reshape(-1, 5)
        np.testing.assert_array_equal(y[c][n], wanted)
    assert some >= 4


def test_ground_truth_is_each_box_once() -> None:
    coverage, boxes = np.zeros((2, 2, 3, 4)), np.zeros((2, 4, 3, 4))
    for y, x in ((0, 1), (1, 1), (1, 2), (2, 3)):
        boxes[1, :, y, x] = np.array([9.25, 3, 21, 30.5] if y < 2 else [1, 2, 40, 24]) - [x * 10, y * 8, x * 10, y * 8]
        coverage[1, 1, y, x] = 0.1
    first, second = LayerCase(python_layer("ClusterGroundtruth", "40,24,8,2", tops=2), coverage, boxes, tops=2).forward()
    assert not first.any() and not second[0].any() and second.shape == (2, 50, 5)
    boxes[1, [0, 2]] += np.arange(4) * 2  # cells are 8 wide
    first, second = LayerCase(python_layer("ClusterGroundtruth", "40,24,8,2", tops=2), coverage, boxes, tops=2).forward()
    assert second[1, :3].tolist() == [[9.25, 3, 21, 30.5, 0], [1, 2, 40, 24, 0], [0] * 5]


def test_cells_that_are_no_multiple_of_the_stride() -> None:
    """Python 2 divides 50 by its 3 columns of stride 16 to 16, and 100 by its 6 to 16; 47 by 2 to 23."""
    coverage, boxes = np.ones((1, 1, 2, 6)), np.zeros((1, 4, 2, 6))
    (y,) = LayerCase(python_layer("ClusterGroundtruth", "100,47,16"), coverage, boxes).forward()
    assert y[0, 1:12, 0].tolist() == [16 * x for x in (1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5)]
    assert y[0, :12, 1].tolist() == [0] * 6 + [23] * 6


def test_boxes_of_no_number_are_left_out() -> None:
    coverage, boxes = np.ones((1, 1, 1, 3)), np.ones((1, 4, 1, 3))
    boxes[0, :, 0, 0], boxes[0, 2, 0, 1] = math.nan, math.inf
    (y,) = LayerCase(python_layer("ClusterGroundtruth", "30,10,10"), coverage, boxes).forward()
    assert y[0, :2].tolist() == [[21, 1, 21, 1, 0], [0] * 5]


@pytest.mark.parametrize(
    ("name", "param_str", "tops", "message"),
    [
        ("ClusterGroundtruth", "40,24", 1, r'param_str needs 3 to 5 numbers, such as "1248, 352, 16"; got \'40,24\''),
        ("ClusterGroundtruth", "40,24,x", 1, r"param_str needs 3 to 5 numbers"),
        ("ClusterDetections", "40,24,8,0.5,3,0.02", 1, r"param_str needs 7 to 9 numbers"),
        ("ClusterDetections", "40,24,8,0.5,3,0.02,9,2", 1, r"says 2 classes, a top each, but there are 1 tops"),
        ("ClusterGroundtruth", "40,24,0", 1, r"needs an image of at least a stride"),
        ("ClusterGroundtruth", "40,4,8", 1, r"needs an image of at least a stride"),
        ("ClusterGroundtruth", "40,24,8,1,11", 1, r"has room for 11 boxes, but image 0 has 12"),
    ],
)
def test_param_str_that_does_not_fit(name: str, param_str: str, tops: int, message: str) -> None:
    boxes = np.arange(48.0).reshape(1, 4, 3, 4)
    with pytest.raises(LayerError, match=message):
        LayerCase(python_layer(name, param_str, tops=tops), np.ones((1, tops, 3, 4)), boxes, tops=tops).forward()


@pytest.mark.parametrize(
    ("coverage", "boxes", "message"),
    [
        ((1, 2, 3, 4), (1, 4, 3, 4), r"coverage must be \(N, 1, H, W\), a channel for each class, got shape \(1, 2, 3, 4\)"),
        ((1, 1, 3), (1, 4, 3), r"coverage must be"),
        ((1, 1, 3, 4), (1, 4, 4, 3), r"boxes must be \(1, 4, 3, 4\), got shape \(1, 4, 4, 3\)"),
    ],
)
def test_shapes_that_do_not_fit(coverage: tuple[int, ...], boxes: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(python_layer("ClusterGroundtruth", "40,24,8"), np.ones(coverage), np.ones(boxes))


def overlap(a: list[float], b: list[float]) -> float:
    wide, high = max(0, min(a[2], b[2]) - max(a[0], b[0])), max(0, min(a[3], b[3]) - max(a[1], b[1]))
    if not wide * high:
        return 0
    return wide * high / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - wide * high)


@pytest.mark.parametrize(("param_str", "least"), [("0.5", 0.5), ("", 0.7), ("high", 0.7)])
def test_scores_by_loops(param_str: str, least: float) -> None:
    random = np.random.default_rng(3)
    lists = [np.zeros((2, size, 5)) for size in (4, 6)]
    for array in lists:
        for n, i in np.ndindex(*array.shape[:2]):
            if random.uniform() < 0.8:
                start = random.integers(0, 4, 2)
                array[n, i, :4] = [*start, *start + random.integers(5, 8, 2)]
        array[..., 4] = random.uniform(size=array.shape[:2]) * (lists[1] is array)
    (y,) = LayerCase(python_layer("ScoreDetections", param_str), *lists).forward()
    assert y.shape == (2, 10, 5)
    marks = set()
    for n in range(2):
        true, found = ([row[:4].tolist() for row in array[n] if row[:4].any()] for array in lists)
        taken, missed = set(), []
        for box in true:
            for j, other in enumerate(found):
                if overlap(other, box) >= least and j not in taken:
                    taken.add(j)
                    break
            else:
                missed.append([*box, 3])
        rows = [[*found[j], 1] for j in range(len(found)) if j in taken]
        rows += [[*found[j], 2] for j in range(len(found)) if j not in taken] + missed
        marks |= {row[4] for row in rows}
        np.testing.assert_array_equal(y[n], rows + [[0] * 5] * (10 - len(rows)))
    assert marks == {1, 2, 3}


def test_mean_average_precision() -> None:
    rows = np.zeros((2, 4, 5))
    rows[0, :, 4], rows[1, :, 4] = [1, 1, 2, 3], [1, 3, 3, 0]
    values = [y.tolist() for y in LayerCase(python_layer("mAP", "any", bottoms=1, tops=3), rows, tops=3).forward()]
    assert values == [[pytest.approx(75 * 50 / 100)], [75], [50]]
    rows[..., 4] = 3
    assert [y.tolist() for y in LayerCase(python_layer("mAP", bottoms=1, tops=3), rows, tops=3).forward()] == [[0]] * 3


def test_errors_of_the_scores() -> None:
    with pytest.raises(LayerError, match=r"the bottoms must be \(N, G, 5\) and \(N, M, 5\), got .* and \(1, 3, 5\)"):
        LayerCase(python_layer("ScoreDetections"), np.ones((2, 3, 5)), np.ones((1, 3, 5)))
    with pytest.raises(LayerError, match=r"x must be \(N, M, 5\), got shape \(2, 5\)"):
        LayerCase(python_layer("mAP", bottoms=1, tops=3), np.ones((2, 5)), tops=3)


def test_the_end_of_the_published_net() -> None:
    """The Python layers of lukeyeager/caffe's examples/kitti/detectnet_network.prototxt, with a smaller image."""
    text = """
    layer { name: "in" type: "Input" top: "coverage" top: "bboxes" top: "coverage-label" top: "bbox-label"
      input_param { shape { dim: 1 dim: 1 dim: 3 dim: 4 } shape { dim: 1 dim: 4 dim: 3 dim: 4 }
                    shape { dim: 1 dim: 1 dim: 3 dim: 4 } shape { dim: 1 dim: 4 dim: 3 dim: 4 } } }
    layer { type: "Python" name: "cluster" bottom: "coverage" bottom: "bboxes" top: "bbox-list"
      python_param { module: "caffe.layers.detectnet.clustering" layer: "ClusterDetections"
                     param_str: "64, 48, 16, 0.6, 3, 0.02, 22" } }
    layer { type: "Python" name: "cluster_gt" bottom: "coverage-label" bottom: "bbox-label" top: "bbox-list-label"
      python_param { module: "caffe.layers.detectnet.clustering" layer: "ClusterGroundtruth" param_str: "64, 48, 16" }
      include { phase: TEST stage: "val" } }
    layer { type: "Python" name: "score" bottom: "bbox-list-label" bottom: "bbox-list" top: "bbox-list-scored"
      python_param { module: "caffe.layers.detectnet.mean_ap" layer: "ScoreDetections" }
      include { phase: TEST stage: "val" } }
    layer { type: "Python" name: "mAP" bottom: "bbox-list-scored" top: "mAP" top: "precision" top: "recall"
      python_param { module: "caffe.layers.detectnet.mean_ap" layer: "mAP" param_str: "64, 48, 16" }
      include { phase: TEST stage: "val" } }
    """
    net = Net(parse_net(text), TEST, stages=["val"])
    ends = np.zeros((1, 4, 3, 4), np.float32)
    for y, x in np.ndindex(3, 4):
        ends[0, :, y, x] = np.array([3, 2, 50, 44]) - [16 * x, 16 * y, 16 * x, 16 * y]
    covered = np.zeros((1, 1, 3, 4), np.float32)
    covered[..., 1:] = 1
    given = {"coverage": covered * 0.7, "bboxes": ends, "coverage-label": covered, "bbox-label": ends}
    for name, array in given.items():
        net.blobs[name].data[...] = array
    done = net.forward()
    assert [done[name].tolist() for name in ("mAP", "precision", "recall")] == [[100]] * 3
    found = net.blobs["bbox-list"].data[0]
    np.testing.assert_allclose(found[0], [3, 2, 50, 44, math.log(9)], rtol=1e-3)
    assert not found[1:].any()
