"""The figure of lesson 7: anchors by label."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from pages import Open, violations

from minicaffe import TRAIN, Net, ops
from minicaffe.data.settings import TrainSettings, read_settings
from minicaffe.layers.proposal.anchor_target import anchor_labels
from minicaffe.rng import set_random_seed
from minicaffe.tutorials import figures

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"


@pytest.fixture(scope="module")
def net() -> Net:
    """The training net of the shapes Faster R-CNN after a pass over one scene."""
    sys.path.append(str(SHAPES))
    from scenes import scene

    photo, boxes, kinds = scene(1000016)
    set_random_seed(2)
    made = Net(SHAPES / "faster_rcnn" / "train.prototxt", TRAIN, settings=read_settings(SHAPES / "shapes.yml"))
    made.layers[0].set_roidb([{"image": photo[..., ::-1].copy(), "boxes": boxes, "gt_classes": kinds}])
    made.forward()
    return made


def counts(net: Net, high: float, low: float, forced: bool) -> list[int]:
    """The layer's numbers of objects, background and ignored anchors, before any are drawn."""
    height, width = net.blobs["data"].shape[2:]
    anchors = ops.shifted_anchors(net.layer_dict["rpn-data"].anchors, *net.blobs["rpn_cls_score"].shape[2:], 8)
    inside = (anchors[:, :2] >= 0).all(axis=1) & (anchors[:, 2] < width) & (anchors[:, 3] < height)
    overlaps = ops.bbox_overlaps(anchors[inside], net.blobs["gt_boxes"].data[:, :4])
    labels = anchor_labels(overlaps, TrainSettings(rpn_positive_overlap=high, rpn_negative_overlap=low), forced)
    outside = int(np.count_nonzero(~inside))
    return [int(np.count_nonzero(labels == label)) + outside * (label == -1) for label in (1, 0, -1)]


@pytest.mark.parametrize("width, scheme", [(720, "light"), (390, "dark")])
def test_anchor_labels(net: Net, tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """The counts are the layer's, for other thresholds and without the rule of the best anchor, too."""
    figures.anchor_labels(net).write(tmp_path / "labels.html")
    page = open_page(tmp_path / "labels.html", width, 800, scheme).page

    def shown() -> list[int]:
        return [int(page.locator(f"[id='count{label}']").inner_text()) for label in (1, 0, -1)]

    assert shown() == counts(net, 0.6, 0.3, True)
    page.get_by_label("The best anchors of each true box").uncheck()
    assert shown() == counts(net, 0.6, 0.3, False) != counts(net, 0.6, 0.3, True)
    high = page.get_by_label("Object from an IoU of")
    high.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert shown() == counts(net, 0.7, 0.3, False)
    page.get_by_label("Background below").fill("0.5")
    assert shown() == counts(net, 0.7, 0.5, False)
    assert "2 of 8 true boxes have no anchor with an IoU of at least 0.70" in page.locator("#cell").inner_text()
    page.get_by_label("The photo with").focus()
    page.keyboard.press("ArrowLeft")
    text = page.locator("#cell").inner_text()
    assert text.startswith("Cell (row 15, column 19): ") and text.count(";") == 17
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
