"""examples/heads: the nets run on given maps and rois, and agree with the definition worked out bin by bin."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).resolve().parents[2] / "examples" / "heads" / "run.py"
SPEC = importlib.util.spec_from_file_location("heads_run", FILE)
heads = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(heads)

HEIGHT, WIDTH = 11, 17
ROIS = np.array([[0, 16, 32, 175, 143], [1, 0, 0, 271, 175], [0, 100.4, 20.6, 150.2, 90.9]], np.float32)


def bins(start, end, size):
    """The whole cells [low, high) of the 7 bins between start and end, cut off at 0 and size."""
    step = (end - start) / 7
    return [
        (min(max(int(np.floor(start + i * step)), 0), size), min(max(int(np.ceil(start + (i + 1) * step)), 0), size))
        for i in range(7)
    ]


@pytest.mark.usefixtures("device")
def test_roi_pool5_is_the_maximum_of_each_bin():
    features = np.random.default_rng(1).standard_normal((2, 5, HEIGHT, WIDTH)).astype(np.float32)
    pooled = heads.run("roi_pool5.prototxt", ROIS, conv5_3=features)["pool5"]
    assert pooled.shape == (3, 5, 7, 7)
    for r, (batch, *corners) in enumerate(ROIS[:2].tolist()):
        x1, y1, x2, y2 = (np.floor(corner / 16 + 0.5) for corner in corners)
        columns, rows = bins(x1, x2 + 1, WIDTH), bins(y1, y2 + 1, HEIGHT)
        for i, (top, bottom) in enumerate(rows):
            for j, (left, right) in enumerate(columns):
                cells = features[int(batch), :, top:bottom, left:right].reshape(5, -1)
                wanted = cells.max(axis=1) if cells.size else 0
                np.testing.assert_array_equal(pooled[r, :, i, j], wanted)


@pytest.mark.usefixtures("device")
def test_psroi_heads_are_the_votes_of_the_bins():
    random = np.random.default_rng(2)
    scores = random.standard_normal((2, 21 * 49, HEIGHT, WIDTH)).astype(np.float32)
    deltas = random.standard_normal((2, 8 * 49, HEIGHT, WIDTH)).astype(np.float32)
    outputs = heads.run("psroi.prototxt", ROIS, rfcn_cls=scores, rfcn_bbox=deltas)
    assert outputs["cls_score"].shape == (3, 21, 1, 1) and outputs["bbox_pred"].shape == (3, 8, 1, 1)
    for r, (batch, *corners) in enumerate(ROIS[:2].tolist()):
        x1, y1, x2, y2 = corners
        columns, rows = bins(x1 / 16, (x2 + 1) / 16, WIDTH), bins(y1 / 16, (y2 + 1) / 16, HEIGHT)
        for maps, name in ((scores, "cls_score"), (deltas, "bbox_pred")):
            grid = maps[int(batch)].reshape(-1, 7, 7, HEIGHT, WIDTH)
            votes = [
                grid[:, i, j, top:bottom, left:right].mean(axis=(1, 2), dtype=np.float64)
                for i, (top, bottom) in enumerate(rows)
                for j, (left, right) in enumerate(columns)
            ]
            np.testing.assert_allclose(outputs[name][r, :, 0, 0], np.mean(votes, axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("count", [0, 1, 4])
def test_any_number_of_rois(count):
    rois = heads.some_rois(np.random.default_rng(3), count, HEIGHT, WIDTH)
    assert heads.run("roi_pool5.prototxt", rois, conv5_3=np.ones((1, 3, HEIGHT, WIDTH), np.float32))["pool5"].shape[0] == count
    maps = {"rfcn_cls": np.ones((1, 1029, HEIGHT, WIDTH)), "rfcn_bbox": np.ones((1, 392, HEIGHT, WIDTH))}
    assert heads.run("psroi.prototxt", rois, **maps)["bbox_pred"].shape == (count, 8, 1, 1)


def test_the_script_prints_each_output(capsys):
    heads.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["pool5", "bbox_pred", "cls_score"]
