"""The tour "learning": what its texts and answers state, against the blobs of the net that it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from minicaffe import TRAIN, Net, Tracer
from minicaffe.blob import Array
from minicaffe.data.roidb import add_flipped, load_roidb
from minicaffe.data.settings import read_settings
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.tracing.tours import load_tour

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
ACCURATE = 5e-4
"""Of four digits."""


class Toured(NamedTuple):
    """A net after a training step, and the stops of the tour by title."""

    net: Net
    stops: dict[str, dict[str, Any]]
    weights: str

    def numbers(self, title: str) -> list[float]:
        """Return the numbers in a stop's text."""
        text = self.stops[title]["text"].replace("−", "-")
        return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?(?:e-\d+)?", text)]

    def data(self, blob: str) -> Array:
        return self.net.blobs[blob].data.astype(np.float64)


@pytest.fixture(scope="module", params=["", "rfcn/shapes_rfcn.caffemodel"], ids=["fillers", "trained"])
def toured(request: pytest.FixtureRequest) -> Iterator[Toured]:
    settings = read_settings(SHAPES / "shapes.yml")
    weights = SHAPES / request.param if request.param else None
    net = Net(SHAPES / "rfcn" / "train.prototxt", TRAIN, weights=weights, settings=settings)
    reader = net.layers[0]
    assert isinstance(reader, RoIData)
    reader.set_roidb(add_flipped(load_roidb(SHAPES / "scene.json")[0]))
    with Tracer(net) as tracer:
        net.forward()
        net.backward()
    stops = load_tour("learning").on_page(tracer.trace)["stops"]
    yield Toured(net, {stop["title"]: stop for stop in stops}, request.param)


def states(toured: Toured, title: str, *expected: float) -> None:
    """Every one of these numbers is in the text of the stop."""
    found = toured.numbers(title)
    for number in expected:
        assert any(other == pytest.approx(number, rel=ACCURATE) for other in found), (title, number, found)


def answer(toured: Toured, title: str) -> float:
    return float(toured.stops[title]["ask"]["answer"][0])


def test_a_third_of_the_stops_ask(toured: Toured) -> None:
    asking = [stop for stop in toured.stops.values() if stop["ask"]]
    assert 3 * len(asking) >= len(toured.stops) >= 12


def test_a_stop_for_each_loss(toured: Toured) -> None:
    layers = {re.search("layer=([^&]*)", stop["address"])[1] for stop in toured.stops.values()}  # type: ignore[index]
    losses = {layer.name for layer in toured.net.layers if any(layer.loss_weights)}
    assert losses == {"rpn_loss_cls", "rpn_loss_bbox", "loss", "loss_bbox"} and losses <= layers


def test_sentences_are_short(toured: Toured) -> None:
    texts = [stop["text"] for stop in toured.stops.values()]
    texts += [stop["ask"][key] for stop in toured.stops.values() if stop["ask"] for key in ("question", "right")]
    texts += [wrong["text"] for stop in toured.stops.values() if stop["ask"] for wrong in stop["ask"]["wrong"]]
    for sentence in re.split(r"(?<=[.?:!])\s+", "\n\n".join(texts)):
        assert len(sentence.split()) <= 25, sentence


def test_anchors(toured: Toured) -> None:
    labels, targets = toured.data("rpn_labels").reshape(18, 30, 40), toured.data("rpn_bbox_targets").reshape(18, 4, 30, 40)
    inside = int(np.abs(targets).any(axis=1).sum())
    positive, negative = int((labels == 1).sum()), int((labels == 0).sum())
    assert inside == 12185 and labels.size == 21600
    states(toured, "A move for each anchor", 12185, 56.41)
    states(toured, "A label for each anchor", 0.6, 0.3)
    states(toured, "Most anchors are ignored", labels.size - inside, positive, negative, 256)
    assert positive + negative == 256
    assert answer(toured, "A guess at each anchor") == labels.size
    assert answer(toured, "Most anchors are ignored") == pytest.approx(100 * 256 / labels.size)
    assert answer(toured, "A move for each anchor") == positive
    counting = toured.data("rpn_bbox_inside_weights").reshape(18, 4, 30, 40)
    np.testing.assert_array_equal(counting, np.repeat((labels == 1)[:, None], 4, axis=1))


def test_losses_of_the_rpn(toured: Toured) -> None:
    labels = toured.data("rpn_labels").reshape(-1)
    scores = toured.data("rpn_cls_score_reshape").reshape(2, -1)
    drawn = np.flatnonzero(labels >= 0)
    log_sum = np.log(np.exp(scores).sum(axis=0))
    mean = (log_sum[drawn] - scores[labels[drawn].astype(int), drawn]).mean()
    assert float(toured.data("rpn_cls_loss")) == pytest.approx(mean, rel=1e-5)
    states(toured, "Loss 1: object or background", mean, np.log(2), 256)
    assert answer(toured, "Loss 1: object or background") == pytest.approx(np.exp(-mean), rel=1e-5)
    names = ("rpn_bbox_pred", "rpn_bbox_targets", "rpn_bbox_inside_weights", "rpn_bbox_outside_weights")
    x, target, inside, outside = (toured.data(name) for name in names)
    error = np.abs(inside * (x - target))
    loss = (outside * np.where(error < 1 / 9, 4.5 * error**2, error - 0.5 / 9)).sum()
    assert float(toured.data("rpn_loss_bbox")) == pytest.approx(loss, rel=1e-5)
    states(toured, "Loss 2: the anchors' moves", loss, 1 / 9, 1 / 256, 256)
    assert set(np.unique(outside)) == {0, 1 / 256}


def test_losses_of_the_rois(toured: Toured) -> None:
    labels, boxes = toured.data("labels").reshape(-1).astype(int), toured.data("gt_boxes")
    rois = toured.data("rois").reshape(-1, 5)
    true = sum((boxes[:, :4] == roi[1:]).all(axis=1).any() for roi in rois)
    proposed = sum((toured.data("rpn_rois")[:, 1:] == roi[1:]).all(axis=1).any() for roi in rois)
    assert true + proposed == 64 and 0 < true <= 8
    objects = int((labels > 0).sum())
    states(toured, "Rois to learn from", 64, 0.5, objects, 64 - objects, true)
    assert answer(toured, "Rois to learn from") == boxes[0, 4] == 2
    scores = toured.data("cls_score").reshape(64, 4)
    loss = (np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(64), labels]).mean()
    accuracy = (scores.argmax(axis=1) == labels).mean()
    assert float(toured.data("loss_cls")) == pytest.approx(loss, rel=1e-5)
    states(toured, "Loss 3: the class", loss, np.log(4), accuracy, 64, 4)
    inside = toured.data("bbox_inside_weights").reshape(64, 16)
    error = np.abs(inside * (toured.data("bbox_pred") - toured.data("bbox_targets")).reshape(64, 16))
    box_loss = np.where(error < 1, 0.5 * error**2, error - 0.5).sum() / 64
    assert float(toured.data("loss_bbox")) == pytest.approx(box_loss, rel=1e-5)
    states(toured, "Loss 4: the rois' moves", box_loss, 64)
    assert answer(toured, "Loss 4: the rois' moves") == 4 * objects == (inside > 0).sum()


def test_untrained_losses_are_near_even_odds(toured: Toured) -> None:
    untrained = not toured.weights
    assert (float(toured.data("rpn_cls_loss")) == pytest.approx(np.log(2), rel=0.02)) == untrained
    assert (float(toured.data("loss_cls")) == pytest.approx(np.log(4), rel=0.02)) == untrained


def test_gradients(toured: Toured) -> None:
    blobs = toured.net.blobs
    scores = "cls_score_ave_cls_score_rois_0_split_0"
    labels, p = toured.data("labels").reshape(-1).astype(int), toured.data("cls_score").reshape(64, 4)
    p = np.exp(p) / np.exp(p).sum(axis=1, keepdims=True)
    expected = (p - np.eye(4)[labels]) / 64
    np.testing.assert_allclose(blobs[scores].diff.reshape(64, 4), expected, atol=1e-7)
    states(toured, "Back: the scores", expected.min(), expected.max())
    assert answer(toured, "Back: the scores") == (1 / 4 - 1) / 64
    boxes = blobs["bbox_pred"].diff
    assert np.abs(boxes).max() <= 1 / 64
    states(toured, "Back: the boxes", 64, boxes.min(), boxes.max())
    assert any(found == pytest.approx(1 / 64, abs=1e-5) for found in toured.numbers("Back: the boxes"))
    zeros = toured.data("bbox_inside_weights") == 0
    assert not boxes[zeros.reshape(boxes.shape)].any()
    assert any(found == pytest.approx(100 * (boxes == 0).mean(), abs=0.06) for found in toured.numbers("Back: the boxes"))
    maps = blobs["rfcn_cls"].diff
    states(toured, "Where the gradient lands on the map", maps.min(), maps.max())
    assert not blobs["rpn_cls_prob_reshape"].diff.any()
    states(toured, "Where the gradient ends", 100)
    weight = toured.net.params["conv1"][0]
    states(toured, "What a weight makes of it", weight.data.std(), weight.diff.std())


def test_only_its_own_losses_train_the_rpn(toured: Toured) -> None:
    """Without rpn_cls_loss, the gradient of the last layer of its scores is 0; the shared trunk's is not."""
    assert toured.stops["Where the gradient ends"]["ask"]["choices"][int(answer(toured, "Where the gradient ends"))] == (
        "rpn_cls_loss only"
    )
    net = toured.net
    score, trunk = net.params["rpn_cls_score"][0], net.params["conv8"][0]
    kept = {name: net.blobs[name].diff.copy() for name in ("rpn_cls_loss", "rpn_loss_bbox", "loss_cls", "loss_bbox")}
    gradients = {}
    for name in kept:
        for other, diff in kept.items():
            net.blobs[other].diff[...] = diff * (other == name)
        net.clear_param_diffs()
        net.backward()
        gradients[name] = bool(score.diff.any()), bool(trunk.diff.any())
    for name, diff in kept.items():  # as before, for the other tests
        net.blobs[name].diff[...] = diff
    net.clear_param_diffs()
    net.backward()
    assert gradients.pop("rpn_cls_loss") == (True, True)
    assert set(gradients.values()) == {(False, True)}


def test_the_number_of_steps_is_that_of_the_example(toured: Toured) -> None:
    readme = (SHAPES / "README.md").read_text()
    assert "--iterations 11500" in readme and "11,500 such steps" in toured.stops["What a weight makes of it"]["text"]
