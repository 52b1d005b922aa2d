"""Which nets are classifiers, and the names of their classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Error, Net
from minicaffe.detection.classification import best_classes, scores_blob
from minicaffe.detection.task import names_for
from minicaffe.formats.prototxt import parse_net

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
HEAD = 'input: "data" input_shape { dim: 2 dim: 3 dim: 4 dim: 6 } '
MAPS = HEAD + 'layer { name: "p" type: "Softmax" bottom: "data" top: "prob" }'
POOLED = HEAD + (
    'layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { global_pooling: true } } '
    'layer { name: "p" type: "Softmax" bottom: "pool" top: "prob" }'
)


def net(text: str) -> Net:
    return Net(parse_net(text), TEST)


def test_a_classifier_has_one_softmax_of_a_score_for_each_class() -> None:
    assert scores_blob(net(POOLED)) == "prob"
    assert scores_blob(net(MAPS)) is None, "scores of each pixel"
    assert scores_blob(net(HEAD)) is None
    two = POOLED + ' layer { name: "q" type: "Softmax" bottom: "pool" top: "other" }'
    assert scores_blob(net(two)) is None
    assert scores_blob(Net(SHAPES / "faster_rcnn" / "test.prototxt", TEST)) is None


def test_the_names_of_a_classifier_have_no_background() -> None:
    names = ["a", "b", "c"]
    assert names_for(net(POOLED), names, "names.txt") == names
    with pytest.raises(Error, match=r"names\.txt has 2 names, but the net has 3 classes"):
        names_for(net(POOLED), names[:2], "names.txt")
    detector = Net(SHAPES / "faster_rcnn" / "test.prototxt", TEST)
    assert names_for(detector, names, "names.txt") == ["__background__", *names]


def test_the_first_of_equal_scores_is_first() -> None:
    found = best_classes(np.array([0.25, 0.5, 0.25], np.float32), None, 2)
    assert [(one["class"], one["class_index"], one["score"]) for one in found] == [("class 1", 1, 0.5), ("class 0", 0, 0.25)]
