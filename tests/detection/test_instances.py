"""The instances of MNC's net, against its script's arithmetic and its kernels' as plain loops."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.data.drawings import palette
from minicaffe.data.settings import settings_from
from minicaffe.detection.instances import STAGES, Instances, find_instances, has_instances, painted, vote
from minicaffe.errors import Error
from minicaffe.formats.prototxt import read_net

WILD = Path(__file__).resolve().parents[3] / "shared/wild/daijifeng001__MNC/models/VGG16/mnc_5stage/test.prototxt"
HEIGHT, WIDTH, CLASSES, F = 11, 17, 4, np.float32
Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]


def made_up(seed: int, count: int = 9, shape: tuple[int, ...] = (5, 7)) -> Numbers:
    """Boxes within the image that overlap in groups of three, masks, and scores of CLASSES."""
    random = np.random.default_rng(seed)
    low = np.repeat(random.uniform(-1, [WIDTH - 6, HEIGHT - 5], (count // 3, 2)), 3, axis=0)
    boxes = np.hstack([low, low + random.uniform(3, [9, 7], (count, 2))]) + random.uniform(-0.6, 0.6, (count, 4))
    boxes = np.clip(boxes, 0, [WIDTH - 1, HEIGHT - 1] * 2).astype(F)
    scores = np.exp(random.normal(0, 1.5, (count, CLASSES)))
    masks = random.uniform(0, 1, (count, *shape)).astype(F)
    return boxes, masks, (scores / scores.sum(axis=1, keepdims=True)).astype(F)


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    sides = [min(one[k + 2], other[k + 2]) - max(one[k], other[k]) + 1 for k in (0, 1)]
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (one, other)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    return float(shared / (areas[0] + areas[1] - shared))


def at(values: np.ndarray, y: np.float32, x: np.float32) -> np.float32:
    """One number between four, in the last row and column one alone: mask_render's and mask_resize's interpolation."""
    top, left = math.floor(y), math.floor(x)
    if top == len(values) - 1 or left == values.shape[1] - 1:
        return values[top, left]
    down, across = F(y - top), F(x - left)
    return F(
        (1 - across) * (1 - down) * values[top, left]
        + across * (1 - down) * values[top, left + 1]
        + (1 - across) * down * values[top + 1, left]
        + across * down * values[top + 1, left + 1]
    )


def rendered(box: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A mask in its box of the image: mask_render."""
    picture = np.zeros((HEIGHT, WIDTH), F)
    for y in range(HEIGHT):
        for x in range(WIDTH):
            if box[0] <= x <= box[2] and box[1] <= y <= box[3]:
                ratios = [F(n) / F(box[k + 2] - box[k] + F(1)) for k, n in ((1, mask.shape[0]), (0, mask.shape[1]))]
                picture[y, x] = at(mask, F(F(y) - box[1]) * ratios[0], F(F(x) - box[0]) * ratios[1])
    return picture


def opencv(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """cv2.resize, linear."""
    found = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            y = min(max((i + 0.5) * len(values) / height - 0.5, 0), len(values) - 1)
            x = min(max((j + 0.5) * values.shape[1] / width - 0.5, 0), values.shape[1] - 1)
            top, left = int(y), int(x)
            for row, of_row in ((top, 1 - (y - top)), (min(top + 1, len(values) - 1), y - top)):
                for column, of_column in ((left, 1 - (x - left)), (min(left + 1, values.shape[1] - 1), x - left)):
                    found[i, j] += of_row * of_column * values[row, column]
    return found


def voted(i: int, k: int, boxes: np.ndarray, masks: np.ndarray, scores: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The box and the pixels of an instance: what gpu_mask_voting makes of box i in class k, drawn by vis_seg.py."""
    voters = [j for j in range(len(boxes)) if overlap(boxes[j].astype(float), boxes[i].astype(float)) >= 0.5]
    heat = np.zeros((HEIGHT, WIDTH), F)
    for j in voters:
        heat += rendered(boxes[j], masks[j]) * F(scores[j, k] / F(sum(float(scores[v, k]) for v in voters)))
    rows = [y for y in range(HEIGHT) if any(heat[y] > F(0.4))] or [HEIGHT // 2]
    columns = [x for x in range(WIDTH) if any(heat[:, x] > F(0.4))] or [WIDTH // 2]
    box = [columns[0], rows[0], columns[-1], rows[-1]]
    height, width, shape = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1, masks.shape[1:]
    small = np.zeros(shape, F)
    for y in range(shape[0]):
        for x in range(shape[1]):
            small[y, x] = at(
                heat, F(rows[0]) + F(y) * (F(height) / F(shape[0])), F(columns[0]) + F(x) * (F(width) / F(shape[1]))
            )
    return box, opencv(small, height, width) >= 0.4


def by_script(boxes: np.ndarray, masks: np.ndarray, scores: np.ndarray, threshold: float) -> tuple[list[tuple], np.ndarray]:
    """Score, class, box and pixels of each instance, class by class, and the picture of their numbers in that order."""
    found, picture = [], np.zeros((HEIGHT, WIDTH), int)
    for k in range(1, CLASSES):
        left = sorted(range(len(boxes)), key=lambda i: -scores[i, k])
        while left:
            best = left.pop(0)
            left = [i for i in left if overlap(boxes[best], boxes[i]) <= 0.3]
            if scores[best, k] >= threshold:
                box, pixels = voted(best, k, boxes, masks, scores)
                found.append((float(scores[best, k]), k, box, pixels))
                part = picture[box[1] : box[3] + 1, box[0] : box[2] + 1]
                part[...] = len(found) * pixels + (1 - pixels) * part
    return found, picture


@pytest.mark.parametrize("seed", range(4))
def test_as_the_script(seed: int) -> None:
    numbers = made_up(seed)
    found = vote(*numbers, HEIGHT, WIDTH, threshold=0.3)
    wanted, picture = by_script(*numbers, 0.3)
    order = sorted(range(len(wanted)), key=lambda i: -wanted[i][0])
    assert 4 <= len(wanted) == len(found.masks)
    for i, one in enumerate(order):
        score, k, box, pixels = wanted[one]
        assert (found.detections.scores[i], found.detections.classes[i]) == (F(score), k)
        assert found.detections.boxes[i].tolist() == box
        np.testing.assert_array_equal(found.masks[i], pixels)
    np.testing.assert_array_equal(
        painted(found, HEIGHT, WIDTH), np.array([0, *(order.index(i) + 1 for i in range(len(order)))])[picture]
    )


def test_by_hand() -> None:
    """A mask of 2 x 2 in a box of 3 x 4: its last column is not interpolated, so that row 1 holds 1/3, 1/3, 1, 1."""
    boxes, masks, scores = np.array([[2, 1, 5, 3]], F), np.array([[[1, 1], [0, 0]]], F), np.array([[0.1, 0.2, 0.7]], F)
    found = vote(boxes, masks, scores, 6, 9)
    assert found.detections.boxes.tolist() == [[2, 1, 5, 2]] and found.detections.classes.tolist() == [2]
    assert found.masks[0].astype(int).tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]
    picture = painted(found, 6, 9)
    assert picture.sum() == 7 and picture[1, 2:6].all() and picture[2, 3:6].all()


def test_boxes_vote_by_their_score() -> None:
    """Equal boxes: the mean of their masks, weighted; a third that overlaps too little has no vote."""
    boxes = np.array([[1, 1, 6, 4], [1, 1, 6, 4], [4, 1, 11, 4]], F)
    masks, scores = np.zeros((3, 2, 3), F), np.array([[0.4, 0.6], [0.8, 0.2], [0.6, 0.4]], F)
    masks[1:] = 1  # 0.25 of the sum
    found = vote(boxes, masks, scores, 8, 13, threshold=0.5)
    assert found.detections.boxes.tolist() == [[6, 4, 6, 4]] and not found.masks[0].any()  # no pixel: the image's middle
    scores[1] = 0.55, 0.45  # 0.43
    found = vote(boxes, masks, scores, 8, 13, threshold=0.5)
    assert found.detections.boxes.tolist() == [[1, 1, 6, 4]] and found.masks[0].all()


def test_the_settings_change_each_threshold(net: Net) -> None:
    """Suppression that keeps every box, no voters but the box itself, and no pixel that is left out."""
    numbers = made_up(1, shape=(4, 4))
    every = settings_from({"BINARIZE_THRESH": 0, "TEST": {"MASK_MERGE_NMS_THRESH": 1, "MASK_MERGE_IOU_THRESH": 1}})
    found = vote(*numbers, HEIGHT, WIDTH, settings=every, threshold=0.3)
    assert len(found.masks) == (numbers[2][:, 1:] > 0.3).sum() > len(found_in(net).masks)
    for box, source in zip(found.detections.boxes, found.detections.sources, strict=True):
        left, top, right, bottom = numbers[0][source]
        assert box.tolist() == [math.ceil(left), math.ceil(top), math.floor(right), math.floor(bottom)]
    Path("mnc.yml").write_text(
        "MASK_SIZE: 21\nBINARIZE_THRESH: 0\nTEST: {SCALES: [22], MASK_MERGE_NMS_THRESH: 1, MASK_MERGE_IOU_THRESH: 1}"
    )
    printed = json.loads(segment("--threshold", 0.3, "--json").stdout)[0]["instances"]
    assert [row["box"] for row in printed] == found.detections.boxes.tolist()


@given(st.integers(0, 999))
def test_masks_fit_their_boxes(seed: int) -> None:
    found = vote(*made_up(seed, 6, (3, 4)), HEIGHT, WIDTH, threshold=0.2)
    for (left, top, right, bottom), mask in zip(found.detections.boxes, found.masks, strict=True):
        assert 0 <= left <= right < WIDTH and 0 <= top <= bottom < HEIGHT
        assert mask.shape == (bottom - top + 1, right - left + 1)
    assert (np.diff(found.detections.scores) <= 0).all()
    assert painted(found, HEIGHT, WIDTH).max() <= len(found.masks)


SHAPES = {"rois": (3, 5), "mask_output": (3, 16), "seg_cls_prob": (3, CLASSES)}
SHAPES |= {"rois_ext": (6, 5), "mask_output_ext": (6, 16), "seg_cls_prob_ext": (6, CLASSES)}
INPUTS = 'input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 } input: "im_info" input_shape { dim: 1 dim: 3 }\n'


def prototxt(shapes: dict[str, tuple[int, ...]]) -> str:
    """A net with MNC's blobs, which are stored numbers."""
    layers = []
    for name, shape in shapes.items():
        dims = " ".join(f"dim: {n}" for n in shape)
        layers.append(f'layer {{ name: "{name}" type: "Parameter" top: "{name}" parameter_param {{ shape {{ {dims} }} }} }}')
        if name.startswith("mask_output"):
            layers.append(
                f'layer {{ name: "of {name}" type: "Python" bottom: "{name}" top: "{name.replace("output", "proposal")}" '
                'python_param { module: "pylayer.mask_layer" layer: "MaskLayer" } }'
            )
    return INPUTS + "\n".join(layers)


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Net:
    """MNC's blobs hold made_up(1), the boxes at scale 2, at which mnc.yml puts a photo of HEIGHT x WIDTH into the input."""
    monkeypatch.chdir(tmp_path)
    Path("mnc.prototxt").write_text(prototxt(SHAPES))
    Path("mnc.yml").write_text("TEST:\n  SCALES: [22]\n")
    Path("names.txt").write_text("none\nox\nelk\nyak\n")
    Image.fromarray(np.full((HEIGHT, WIDTH, 3), 200, np.uint8)).save("photo.png")
    made, (boxes, masks, scores) = Net("mnc.prototxt", TEST), made_up(1, shape=(4, 4))
    for rows, (rois, mask, score) in zip((slice(3), slice(3, None)), STAGES, strict=True):
        made.params[rois][0].data[:, 1:] = 2 * boxes[rows]
        made.params[mask.replace("proposal", "output")][0].data[...] = masks[rows].reshape(-1, 16)
        made.params[score][0].data[...] = scores[rows]
    made.save("mnc.caffemodel")
    return made


def segment(*words: object) -> Result:
    files = ("mnc.prototxt", "mnc.caffemodel", "photo.png", "--cfg", "mnc.yml")
    return CliRunner().invoke(main, ["segment", *map(str, (*files, *words))])


def found_in(net: Net) -> Instances:
    net.blobs["im_info"].data[...] = [2 * HEIGHT, 2 * WIDTH, 2]
    return find_instances(net, HEIGHT, WIDTH, threshold=0.3)


def test_both_stages_at_the_images_scale(net: Net) -> None:
    assert has_instances(net)
    found, wanted = found_in(net), vote(*made_up(1, shape=(4, 4)), HEIGHT, WIDTH, threshold=0.3)
    np.testing.assert_array_equal(found.detections.boxes, wanted.detections.boxes)
    np.testing.assert_array_equal(painted(found, HEIGHT, WIDTH), painted(wanted, HEIGHT, WIDTH))
    assert len(set(painted(found, HEIGHT, WIDTH).flat)) > 3


def test_the_command(net: Net) -> None:
    result = segment("--threshold", 0.3, "--classes", "names.txt", "--out", "out", "--json")
    assert result.exit_code == 0, result.output
    (printed,) = json.loads(result.stdout)
    wanted = found_in(net)
    assert [row["box"] for row in printed["instances"]] == wanted.detections.boxes.tolist()
    names = ["none", "ox", "elk", "yak"]
    assert [row["class"] for row in printed["instances"]] == [names[k] for k in wanted.detections.classes]
    assert [Path(file).name for file in printed["files"]] == ["photo_mask.png", "photo_overlay.png", "photo_legend.png"]
    numbers = painted(wanted, HEIGHT, WIDTH)
    with Image.open("out/photo_mask.png") as mask, Image.open("out/photo_overlay.png") as overlay:
        np.testing.assert_array_equal(np.asarray(mask), numbers)
        np.testing.assert_allclose(np.asarray(overlay), 100 + palette()[numbers] / 2, atol=1)
    with Image.open("out/photo_legend.png") as legend:
        assert legend.height == 24 * len(wanted.masks) + 8
        assert legend.getpixel((20, 16)) == (128, 0, 0) and legend.getpixel((20, 40)) == (0, 128, 0)


def test_lines(net: Net) -> None:
    found = found_in(net).detections
    left, top, right, bottom = found.boxes[0]
    box = f"x1 {left:6.1f}  y1 {top:6.1f}  x2 {right:6.1f}  y2 {bottom:6.1f}"
    lines = segment("--threshold", 0.3).stdout.splitlines()
    assert lines[:2] == ["photo.png:", f"  class {found.classes[0]}  {found.scores[0]:.3f}  {box}"]
    assert len(lines) == 1 + len(found)
    best = found.scores[0]
    assert f"  nothing reaches --threshold 1: the best score is {best:.4g}" in segment("--threshold", 1).stdout


@pytest.mark.parametrize("blob", ["rois_ext", "mask_output", "seg_cls_prob_ext"])
def test_numbers_that_are_nan(net: Net, blob: str) -> None:
    net.params[blob][0].data[2, 3] = np.nan
    named = blob.replace("output", "proposal")
    with pytest.raises(Error, match=rf'(boxes|masks|scores) that are NaN or infinite in "{named}"'):
        found_in(net)
    net.save("mnc.caffemodel")
    assert f'infinite in "{named}"' in segment().stderr


@pytest.mark.parametrize("blob", ["rois", "seg_cls_prob", "mask_output_ext"])
def test_a_blob_that_is_missing(net: Net, blob: str) -> None:
    Path("mnc.prototxt").write_text(prototxt({name: shape for name, shape in SHAPES.items() if name != blob}))
    missing = blob.replace("output", "proposal")
    assert f'mnc.prototxt: a net of MNC has a blob "{missing}"; this net has none' in segment().stderr


@pytest.mark.parametrize(
    ("blob", "shape", "message"),
    [
        ("rois", (3, 6), r'"rois" must be \(R, 5\), got shape \(3, 6\)'),
        ("mask_output_ext", (7, 16), r'"mask_proposal_ext" must be \(6, 1, height, width\), as "rois_ext"; got shape \(7, 1,'),
        ("seg_cls_prob", (2, CLASSES), r'"seg_cls_prob" must be \(3, classes\), as "rois"; got shape \(2, 4\)'),
        ("mask_output_ext", (6, 25), r'"mask_proposal" \(3, 1, 4, 4\) and "mask_proposal_ext" \(6, 1, 5, 5\) must agree'),
        ("seg_cls_prob_ext", (6, 5), r'"seg_cls_prob" \(3, 4\) and "seg_cls_prob_ext" \(6, 5\) must agree'),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(net: Net, blob: str, shape: tuple[int, ...], message: str) -> None:
    Path("mnc.prototxt").write_text(prototxt({**SHAPES, blob: shape}))
    with pytest.raises(Error, match=rf"mnc.prototxt: {message}"):
        found_in(Net("mnc.prototxt", TEST))


def test_options_that_do_not_fit(net: Net) -> None:
    Path("short.txt").write_text("one\n")
    assert "short.txt has 1 names, but the net has 4 classes" in segment("--classes", "short.txt").stderr
    result = segment("--blob", "mask_proposal", "--threshold", 0.4)
    assert "--threshold does nothing for class scores" in result.stderr
    assert "does not hold a score of each class" in segment("--blob", "mask_proposal").stderr


@pytest.mark.skipif(not WILD.exists(), reason="needs ../shared/wild, published prototxts")
def test_the_published_nets_blobs() -> None:
    tops = {top for layer in read_net(str(WILD), warn=False).param.layer for top in layer.top}
    assert {name for names in STAGES for name in names} <= tops
