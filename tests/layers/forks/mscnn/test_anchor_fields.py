"""The labels of anchors, against the originals' loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from minicaffe.layers.data.scenes import Placed
from minicaffe.layers.forks.mscnn.anchor_fields import Field, Objects, Rules, label_maps, overlaps

MS = Rules(unit=0, threshold=0.4, regions=0.4, regions_first=True, least=0.2)
CASCADE = Rules(unit=1, threshold=0.4, regions=0.3, regions_first=False, least=0.2)


def c_round(value: float) -> int:
    """C's, of numbers >= 0."""
    return int(value + 0.5)


def overlap(a: np.ndarray, b: np.ndarray, unit: int, mode: str) -> float:
    """Of two boxes."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = 0.0 if wide < 0 or high < 0 or (unit and high == 0) else (wide + unit) * (high + unit)
    one, other = ((box[2] - box[0] + unit) * (box[3] - box[1] + unit) for box in (a, b))
    return shared / (one if mode == "IOFU" else one + other - shared)


def by_definition(frame, placed, boxes, classes, ignored, regions, fields, rules):
    """The loops of both layers."""
    maps, matches = [], np.zeros(len(boxes), int)
    best, where = np.zeros(len(boxes)), np.zeros(len(boxes), int)
    across, down = placed
    size = boxes[:, 2:] - boxes[:, :2] + rules.unit
    rows = np.concatenate([classes[:, None], (boxes[:, :2] + boxes[:, 2:]) / 2, size], axis=1)
    for number, field in enumerate(fields):
        s = field.stride
        label = np.zeros((6, c_round(frame[0] / s), c_round(frame[1] / s)))
        for h, w in np.ndindex(*label.shape[1:]):
            label[5, h, w] = 1
            if not (c_round(across.to / s) <= w < c_round(across.to / s) + c_round(across.count / s)):
                continue
            if not (c_round(down.to / s) <= h < c_round(down.to / s) + c_round(down.count / s)):
                continue
            x, y = (w + 0.5) * s, (h + 0.5) * s
            anchor = np.array([x - field.width / 2, y - field.height / 2, x + field.width / 2, y + field.height / 2])
            if rules.margin is not None:
                over = rules.margin * np.array([field.width, field.height]) / 2
                if anchor[0] < across.to - over[0] or anchor[2] >= across.to + across.count + over[0]:
                    continue
                if anchor[1] < down.to - over[1] or anchor[3] >= down.to + down.count + over[1]:
                    continue
            image = np.array([across.to, down.to, across.to + across.count, down.to + down.count])
            if rules.inside is not None and overlap(anchor, image, rules.unit, "IOFU") < rules.inside:
                continue
            in_regions = sum(overlap(anchor, region, rules.unit, "IOFU") for region in regions)
            if rules.regions_first and in_regions >= rules.regions:
                continue
            shared = [overlap(box, anchor, rules.unit, "IOU") for box in boxes]
            for i, value in enumerate(shared):
                if value > best[i]:
                    best[i], where[i] = value, number
            most = max(shared, default=0)
            if most > rules.threshold:
                i = shared.index(most)
                label[:5, h, w] = rows[i]
                label[0, h, w] = 0 if ignored[i] else classes[i]
                label[5, h, w] = most
                matches[i] += 1
            elif in_regions < rules.regions:
                label[5, h, w] = most
        maps.append(label)
    for i in range(len(boxes)):
        if not ignored[i] and not matches[i] and best[i] >= rules.least:
            label, s = maps[where[i]], fields[where[i]].stride
            h = min(max(int(rows[i, 2] // s), 0), label.shape[1] - 1)
            w = min(max(int(rows[i, 1] // s), 0), label.shape[2] - 1)
            if label[0, h, w] <= 0:
                label[:5, h, w] = rows[i]
                if rules.unit:
                    label[5, h, w] = best[i]
    return maps


@pytest.mark.parametrize(
    "rules", [MS, CASCADE, Rules(1, 0.3, 0.5, False, 0.1, margin=0.4), Rules(1, 0.3, 0.5, False, 0.1, inside=0.8)]
)
@pytest.mark.parametrize("seed", range(3))
def test_as_the_loops(rules: Rules, seed: int) -> None:
    random = np.random.default_rng(seed)
    fields = [Field(4, 12, 9), Field(8, 20, 28)]
    placed = Placed(4, 0, 40), Placed(0, 3, 32)
    corners = random.uniform(-4, 40, (5, 2))
    boxes = np.concatenate([corners, corners + random.uniform(3, 26, (5, 2))], axis=1).astype(np.float32)
    regions = np.array([[30, 0, 47, 12], [2, 20, 9, 31]], np.float32)
    classes, ignored = np.array([1, 2, 3, 1, 2], np.float32), np.array([0, 1, 0, 0, 0], bool)
    found = label_maps((32, 48), placed, Objects(boxes, classes, ignored), regions, fields, rules)
    expected = by_definition((32, 48), placed, boxes.astype(float), classes, ignored, regions.astype(float), fields, rules)
    assert [label.shape for label in found] == [(6, 8, 12), (6, 4, 6)]
    for label, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(label, wanted, rtol=1e-5, atol=1e-5)


def test_overlaps_by_hand() -> None:
    a, b = (
        np.array([[0, 0, 9, 9]], np.float32),
        np.array([[5, 0, 14, 9], [9, 0, 12, 9], [20, 0, 21, 1], [0, 9, 9, 12]], np.float32),
    )
    np.testing.assert_allclose(overlaps(a, b, 1), [[50 / 150, 10 / 130, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(overlaps(a, b, 0), [[36 / 126, 0, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(overlaps(a, b, 1, of_first=True)[0, :2], [0.5, 0.1])


def test_without_boxes_and_fields() -> None:
    nothing = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, bool))
    whole = Placed(0, 0, 16), Placed(0, 0, 16)
    (label,) = label_maps((16, 16), whole, nothing, np.zeros((0, 4), np.float32), [Field(8, 8, 8)], MS)
    assert label.shape == (6, 2, 2) and not label.any()
    assert label_maps((16, 16), whole, nothing, np.zeros((0, 4), np.float32), [], CASCADE) == []


def test_a_field_without_a_place_has_no_labels() -> None:
    """The stride is beyond the frame: a box that no anchor has stays without one, whatever the rules ask for."""
    box, rules = np.array([[1, 2, 8, 6]], np.float32), replace(CASCADE, least=0)
    objects, whole = Objects(box, np.ones(1, np.float32), np.zeros(1, bool)), (Placed(0, 0, 12), Placed(0, 0, 9))
    (label,) = label_maps((9, 12), whole, objects, box[:0], [Field(999, 5, 7)], rules)
    assert label.shape == (6, 0, 0)
