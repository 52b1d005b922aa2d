"""The scenes of examples/shapes: their rules, and that a seed is a scene."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
sys.path.insert(0, str(SHAPES))

import scenes  # noqa: E402

SEEDS = range(7000, 7020)


@pytest.fixture(scope="module")
def drawn() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    return [scenes.scene(seed) for seed in SEEDS]


@pytest.mark.slow
def test_a_seed_is_a_scene(drawn):
    for first, second in zip(drawn[3], scenes.scene(SEEDS[3]), strict=True):
        np.testing.assert_array_equal(first, second)
    assert drawn[3][0].shape != drawn[4][0].shape or (drawn[3][0] != drawn[4][0]).any()


def test_images_and_boxes_are_in_bounds(drawn):
    for image, boxes, classes in drawn:
        height, width, channels = image.shape
        assert (image.dtype, channels) == (np.uint8, 3)
        assert 400 <= width <= 480 and 300 <= height <= 360
        assert boxes.shape == (len(classes), 4) and 1 <= len(classes) <= 8
        assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] < width).all() and (boxes[:, 3] < height).all()
        assert set(classes.tolist()) <= {1, 2, 3}


def test_sides_and_overlaps_keep_their_limits(drawn):
    for _, boxes, _ in drawn:
        sides = boxes[:, 2:] - boxes[:, :2] + 1
        assert sides.min() >= 20 and sides.max() <= 250
        for i, box in enumerate(boxes.tolist()):
            assert all(scenes.iou(box, other) <= 0.3 for other in boxes[:i].tolist())


def test_all_classes_and_many_sizes_occur(drawn):
    sides = np.concatenate([(boxes[:, 2:] - boxes[:, :2] + 1).max(axis=1) for _, boxes, _ in drawn])
    assert set(np.concatenate([classes for _, _, classes in drawn]).tolist()) == {1, 2, 3}
    assert sides.min() < 30 and sides.max() > 180


def test_iou_of_inclusive_boxes():
    assert scenes.iou([0, 0, 9, 9], [0, 0, 9, 9]) == 1
    assert scenes.iou([0, 0, 9, 9], [5, 0, 14, 9]) == pytest.approx(50 / 150)
    assert scenes.iou([0, 0, 9, 9], [10, 0, 19, 9]) == 0


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_box_is_tight_around_its_outline(kind):
    for seed in range(20):
        random = np.random.default_rng((kind, seed))
        drawn_kind, points = scenes.outline(random, 40 + seed)
        width, height = np.round(points.max(axis=0)).astype(int).tolist()
        mask = scenes._mask(points, width, height)[..., 0]
        assert points.min() == pytest.approx(0, abs=1e-4), drawn_kind
        for edge in (mask[0], mask[-1], mask[:, 0], mask[:, -1]):
            assert edge.max() > 0


def test_the_command_writes_images_and_a_roidb(tmp_path):
    result = CliRunner().invoke(scenes.main, [str(tmp_path / "few"), "--count", "3", "--first-seed", "11"])
    assert result.exit_code == 0, result.output
    roidb = json.loads((tmp_path / "few" / "roidb.json").read_text())
    assert roidb["classes"] == ["__background__", "circle", "square", "triangle"]
    assert [entry["image"] for entry in roidb["images"]] == ["000011.jpg", "000012.jpg", "000013.jpg"]
    image, boxes, classes = scenes.scene(12)
    assert roidb["images"][1]["boxes"] == boxes.tolist() and roidb["images"][1]["classes"] == classes.tolist()
    with Image.open(tmp_path / "few" / "000012.jpg") as picture:
        assert picture.size == image.shape[1::-1]
        assert np.abs(np.asarray(picture, float) - image).mean() < 10
