"""Where a traced backward pass starts: at the losses, at one detection's score, or at ones in every output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minicaffe.blob import Blob
from minicaffe.data.drawings import class_name
from minicaffe.detection.detect import Detections
from minicaffe.detection.inputs import start_backward
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.ssd.box_codes import decode, read_priors
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.net import Net

from .trace_picture import names_of

WAYS = "loss, ones or detection:K"


class GradientSeed(NamedTuple):
    """layer: the number of the one that backward begins with; words: what the gradients are of."""

    layer: int
    words: str


def gradient_seed(
    net: Net, wanted: str | None, until: str | None, found: Detections | None, classes: Sequence[str] | None
) -> GradientSeed:
    """Prepare net's backward pass.

    wanted: "loss" (all losses), "ones" (the sum of the outputs, or of the tops of the layer `until`), "detection:K" (the score
    of detection K of those found, the best one is 0); None: the losses if there are any, else the best detection if there is
    one, else ones. classes: the names of classes, None for the usual ones. Raises Error for what the net does not have.
    """
    losses = [name for name, weight in net.blob_loss_weights.items() if weight]
    if wanted is None:
        wanted = "loss" if losses else "detection:0" if found is not None and len(found) and until is None else "ones"
    last = len(net.layers) - 1 if until is None else net.index_of(until)
    if wanted.partition(":")[0] == "detection":
        k = _number(wanted, until, found)
        assert found is not None
        return _at_detection(net, k, found, class_name(int(found.classes[k]), names_of(net, classes)))
    if wanted == "loss" and losses:
        start_backward(net, until)
        return GradientSeed(last, f"the loss{'es' if len(losses) > 1 else ''} {', '.join(losses)}")
    if wanted == "ones":
        return GradientSeed(last, f"the sum of {_ones(net, last, net.top_names[until] if until else net.outputs)}")
    why = "no layer of the net has a loss; " if wanted == "loss" else ""
    raise Error(f"--seed-gradient {wanted}: {why}give {WAYS}")


def _ones(net: Net, last: int, names: Sequence[str]) -> str:
    """Put ones into the diffs of these tops; their names, and what to think of them."""
    _clear(net, last)
    for name in names:
        net.blobs[name].diff[...] = 1
    softmax = [top for layer in net.layers if isinstance(layer, Softmax) for top in net.top_names[layer.name] if top in names]
    noise = f" ({softmax[0]} is a Softmax's: its sum is always 1, so its gradient is nothing but rounding)" if softmax else ""
    return ", ".join(names) + noise


def _number(wanted: str, until: str | None, found: Detections | None) -> int:
    """K of "detection:K". Raises Error."""
    text = wanted.partition(":")[2]
    if until is not None:
        raise Error(f"--seed-gradient {wanted}: a detection needs the whole net: leave out --until {until}")
    if found is None:
        raise Error(f"--seed-gradient {wanted}: no detections: the net is no detector, or --image is not given")
    if not text.isdecimal() or len(text) > 9 or int(text) >= len(found):
        raise Error(f"--seed-gradient {wanted}: the image has {len(found)} detections: give detection:0 for the best one")
    return int(text)


def _at_detection(net: Net, k: int, found: Detections, name: str) -> GradientSeed:
    """Put 1 into the diff of the score of detection k."""
    assert found.sources is not None
    layer = ssd_layer(net)
    if isinstance(layer, DetectionOutput):
        bottoms, top = ([net.blobs[blob] for blob in names[layer.name]] for names in (net.bottom_names, net.top_names))
        blob, index = net.bottom_names[layer.name][1], _ssd_score(layer, bottoms, top[0], int(found.sources[k]))
    else:
        blob, index = "cls_prob", (int(found.sources[k]), int(found.classes[k]))
    writer = max(i for i, other in enumerate(net.layers) if blob in net.top_names[other.name])
    _clear(net, writer)
    diff = net.blobs[blob].diff
    diff.reshape(len(diff), -1)[index] = 1
    return GradientSeed(writer, f"the score of detection {k}, {name} {found.scores[k]:.4f}: {blob}[{index[0]}, {index[1]}]")


def _clear(net: Net, last: int) -> None:
    """Every gradient from layer `last` down is wanted, and nothing comes from the layers behind it."""
    net.force_backward()
    net.clear_param_diffs()
    for blob in (
        *(net.blobs[name] for name in net.outputs),
        *(bottom for node in net.nodes[last + 1 :] for bottom in node.bottoms),
    ):
        blob.diff[...] = 0


def _ssd_score(layer: DetectionOutput, bottoms: Sequence[Blob], top: Blob, row: int) -> tuple[int, int]:
    """Where in conf (N, P * C) the score of a row of DetectionOutput's top is."""
    param = layer.param.detection_output_param
    images, classes = bottoms[0].shape[0], param.num_classes
    image, kind = (int(number) for number in top.read_data().reshape(-1, 7)[row, :2])
    score, corners = top.read_data().reshape(-1, 7)[row, 2], top.read_data().reshape(-1, 7)[row, 3:]
    same = np.flatnonzero(bottoms[1].read_data().reshape(images, -1, classes)[image, :, kind] == score)
    if len(same) > 1:  # the one whose box it is
        priors = read_priors(layer, bottoms[2].read_data(), param.code_type)
        codes = bottoms[0].read_data().reshape(images, len(priors.boxes), layer.loc_classes, 4)[image]
        own = codes[None, :, 0 if layer.loc_classes == 1 else kind]
        boxes = decode(own, priors, param.code_type, param.variance_encoded_in_target)[0][same]
        same = same[np.argsort(np.abs(boxes - corners).sum(axis=1), kind="stable")]
    return image, int(same[0]) * classes + kind
