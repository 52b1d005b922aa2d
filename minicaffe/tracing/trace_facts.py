"""The facts of a trace besides its steps: its layers, its image and the detections on it, and notes on reduced data.

Each layer has one number explained, so that a page without Python shows how such a number is computed. gradient_seed prepares
where backward starts: at the losses, at one detection's score, or at ones in every output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob, MemoryState, SyncedMemory
from minicaffe.data.drawings import class_name
from minicaffe.data.images import resize_bilinear
from minicaffe.detection.classification import best_classes, scores_blob
from minicaffe.detection.detect import Detections
from minicaffe.detection.families import family_of, rows_end
from minicaffe.detection.family import FindOptions
from minicaffe.detection.inputs import input_width, start_backward
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.forked import choice_of
from minicaffe.formats.prototxt import to_text
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.pool.pooling import Pooling
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.shape.split import Split
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.net import Net
from minicaffe.parameters import weight_name
from minicaffe.proto import caffe_pb2
from minicaffe.registry import explains

from .draw import layer_details
from .explanations.explanation import Case, Explanation, MaxExplanation, SumExplanation
from .explanations.lineage import case_of
from .explanations.runs import shown_name
from .explanations.ssd import detections_of, image_of
from .explanations.terms import Index
from .receptive_fields import reads_of
from .trace import (
    MOST_TILES,
    SAMPLED,
    Example,
    LayerFacts,
    ParamShot,
    Picture,
    RoiShot,
    Step,
    SumShot,
    TargetShot,
    shot,
)
from .trace_targets import seen_image

WAYS = "loss, ones or detection:K"
LONG_SIDE = 640
"""The most pixels of a side of the image on the page."""
MOST_DETECTIONS = 200
"""The most detections of a trace, the best ones: the page's slider chooses among them."""
MOST_CLASSES = 5
MOST_TERMS = 2**15
"""The most terms of a number that the page shows one by one."""
MOST_VALUES = 12
"""The most values of an attribute of a layer."""
MOST_LETTERS = 80


def picture(net: Net, image: NDArray[np.uint8] | None) -> Picture | None:
    """Return the image (H, W, 3), BGR, as a Picture, shrunk if large; None without an image."""
    return None if image is None else _picture(image, input_width(net, image.shape[1]))


def seen_picture(layer: Layer, tops: Sequence[Array]) -> Picture | None:
    """Return the image that a RoIData has just read as a Picture; None for other layers and batches of several images."""
    found = seen_image(layer, tops[0]) if isinstance(layer, RoIData) else None
    return None if found is None else _picture(found[0], found[0].shape[1], found[1])


def _picture(image: NDArray[np.uint8], width: float, caption: str = "") -> Picture:
    """Return a Picture. width: of the net's input."""
    factor = min(1.0, LONG_SIDE / max(image.shape[:2]))
    shown = resize_bilinear(image, *(max(round(side * factor), 1) for side in image.shape[:2]))
    rgb = np.ascontiguousarray(shown[..., ::-1].round().clip(0, 255).astype(np.uint8))
    return Picture(rgb, width / rgb.shape[1], image.shape[1] / rgb.shape[1], caption)


def found_detections(net: Net, image: NDArray[np.uint8] | None) -> Detections | None:
    """Return the detections of the net's last pass on image, whatever their score.

    None without an image, if the net is not a detector, or if a box or a score is not finite.
    """
    if image is None:
        return None
    try:
        return family_of(net).read(net, image.shape[:2], FindOptions(0, MOST_DETECTIONS))
    except Error:
        return None


def found_classes(net: Net, image: NDArray[np.uint8] | None, names: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """Return the best classes of the first image; None if the net is not a classifier, or if a score is NaN."""
    blob = scores_blob(net) if image is not None else None
    scores = None if blob is None else net.blobs[blob].read_data()[0].reshape(-1)
    return None if scores is None or np.isnan(scores).any() else best_classes(scores, names, MOST_CLASSES)


def names_of(net: Net, given: Sequence[str] | None) -> Sequence[str] | None:
    """Return a detector's class names: the given ones, or the usual ones for its number of classes."""
    with suppress(Error):
        return given or family_of(net).classes(net).names
    return given


class GradientSeed(NamedTuple):
    """The start of a backward pass.

    layer: the number of the layer where it begins; words: what the gradients are of.
    """

    layer: int
    words: str


def gradient_seed(
    net: Net, wanted: str | None, until: str | None, found: Detections | None, classes: Sequence[str] | None
) -> GradientSeed:
    """Prepare net's backward pass, and return its start.

    wanted: "loss" (all losses), "ones" (the sum of the outputs, or of the tops of the layer `until`) or "detection:K" (the
    score of detection K, 0 for the best); None: the losses if there are any, else the best detection if there is one, else
    ones. classes: the class names, None for the usual ones. Raises Error for anything that the net lacks.
    """
    losses = [name for name, weight in net.blob_loss_weights.items() if weight]
    if wanted is None:
        is_detector = found is not None and len(found) and until is None and _has_scores(net)
        wanted = "loss" if losses else "detection:0" if is_detector else "ones"
    last = len(net.layers) - 1 if until is None else net.index_of(until)
    if wanted.partition(":")[0] == "detection":
        k = _number(net, wanted, until, found)
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
    """Set the diffs of these tops to 1; return their names, with a remark on a Softmax."""
    _clear(net, last)
    for name in names:
        net.blobs[name].diff[...] = 1
    softmax = [top for layer in net.layers if isinstance(layer, Softmax) for top in net.top_names[layer.name] if top in names]
    noise = f" ({softmax[0]} is a Softmax's: its sum is always 1, so its gradient is nothing but rounding)" if softmax else ""
    return ", ".join(names) + noise


def _has_scores(net: Net) -> bool:
    """Return True if a blob of a detector holds the score of each detection: a YOLO layer or a script computes another."""
    return ssd_layer(net) is not None or rows_end(net) is None


def _number(net: Net, wanted: str, until: str | None, found: Detections | None) -> int:
    """Return K of "detection:K". Raises Error."""
    text = wanted.partition(":")[2]
    if until is not None:
        raise Error(f"--seed-gradient {wanted}: a detection needs the whole net: leave out --until {until}")
    if found is None:
        raise Error(f"--seed-gradient {wanted}: no detections: the net is no detector, or --image is not given")
    if not _has_scores(net):
        raise Error(f"--seed-gradient {wanted}: no blob of this net holds the scores of its detections: give ones")
    if not text.isdecimal() or len(text) > 9 or int(text) >= len(found):
        raise Error(f"--seed-gradient {wanted}: the image has {len(found)} detections: give detection:0 for the best one")
    return int(text)


def detection_score(net: Net, k: int, found: Detections) -> tuple[str, tuple[int, int]]:
    """Return the blob with the score of detection k, and the score's index in it as (items, numbers of an item).

    Raises Error if no blob holds the scores.
    """
    if not _has_scores(net) or found.sources is None:
        raise Error("no blob of this net holds the scores of its detections")
    layer = ssd_layer(net)
    if isinstance(layer, DetectionOutput):
        return net.bottom_names[layer.name][1], _ssd_score(net, layer, int(found.sources[k]))
    return "cls_prob", (int(found.sources[k]), int(found.classes[k]))


def _at_detection(net: Net, k: int, found: Detections, name: str) -> GradientSeed:
    """Set the diff of detection k's score to 1; return the start of the backward pass."""
    blob, index = detection_score(net, k, found)
    writer = max(i for i, other in enumerate(net.layers) if blob in net.top_names[other.name])
    _clear(net, writer)
    diff = net.blobs[blob].diff
    diff.reshape(len(diff), -1)[index] = 1
    return GradientSeed(writer, f"the score of detection {k}, {name} {found.scores[k]:.4f}: {blob}[{index[0]}, {index[1]}]")


def _clear(net: Net, last: int) -> None:
    """Clear the gradients, so that backward can start at layer `last` and compute all gradients before it."""
    net.force_backward()
    net.clear_param_diffs()
    for blob in (
        *(net.blobs[name] for name in net.outputs),
        *(bottom for node in net.nodes[last + 1 :] for bottom in node.bottoms),
    ):
        blob.diff[...] = 0


def _ssd_score(net: Net, layer: DetectionOutput, row: int) -> tuple[int, int]:
    """Return the index in conf (N, P * C) of the score in a row of DetectionOutput's top."""
    case: Case[DetectionOutput] = case_of(net, net.index_of(layer.name))
    images = case.y.reshape(-1, 7)[:, 0]
    image = int(images[row])
    found = detections_of(case, image_of(case, image))[row - int((images < image).sum())]
    return image, found.prior * layer.param.detection_output_param.num_classes + found.label


def example(net: Net, i: int, bottoms: Sequence[Array]) -> Example | None:
    """Explain one number of layer i, which has just run forward. bottoms: copies from before it ran.

    It is the greatest number of the first top's first item; for an ROI layer, the middle bin of the first roi's first channel.
    None if there is nothing to explain.
    """
    layer, node = net.layers[i], net.nodes[i]
    explain_it = explains.get(type(layer))
    tops = [top.read_data() for top in node.tops]
    if explain_it is None or not bottoms or not tops or not tops[0].size:
        return None
    case = Case(layer, [shown_name(net, name) for name in node.bottom_names], list(node.top_names), bottoms, tops)
    at = _place(layer, tops[0])
    with np.errstate(all="ignore"):  # as in the layer
        try:
            explanation: Explanation = explain_it(case, at)
        except Error:  # explain reports the reason when this number is requested
            return None
        return example_of(layer, explanation)


def example_of(layer: Layer, explanation: Explanation, top: int = 0) -> Example:
    """Return the record of an explanation of a number of a layer's top."""
    return Example(explanation.at, explanation.text().splitlines(), _sum_shot(layer, explanation, top))


def _sum_shot(layer: Layer, found: Explanation, top: int) -> SumShot | None:
    """Return the terms of a convolution's or a pooling's number, unless there are too many."""
    if not isinstance(layer, Convolution | Pooling) or not isinstance(found, SumExplanation | MaxExplanation):
        return None
    terms = found.terms
    if terms.places.shape[1] != 4 or not 0 < len(terms) <= MOST_TERMS:
        return None
    is_max = isinstance(found, MaxExplanation)
    if is_max and top:
        return None  # a pooling's second top is a place, not a number of its window
    x = terms.columns.get("x", terms.product)
    weight = terms.columns.get("weight", x if "x" in terms.columns else None)  # without weights a product is x * x
    bias, divisor = (None, 1.0) if isinstance(found, MaxExplanation) else (found.bias, found.divisor)
    bottom = top if isinstance(layer, Convolution) else 0
    return SumShot(found.blob, found.at, bottom, terms.places, x, weight, is_max, bias, divisor, found.value)


def _place(layer: Layer, y: Array) -> Index:
    if isinstance(layer, RoiLayer) and y.ndim == 4:
        return (0, 0, y.shape[2] // 2, y.shape[3] // 2)
    if not y.ndim:
        return ()
    return (0, *(int(place) for place in np.unravel_index(np.argmax(y[0]), y.shape[1:])))


@dataclass(frozen=True)
class Ran:
    """The records of a layer's forward."""

    roi: RoiShot | None = None
    example: Example | None = None
    targets: TargetShot | None = None
    seen: Picture | None = None


def layer_facts(net: Net, i: int, layer: Layer, ran: Ran, went_back: bool, room: int) -> LayerFacts:
    """Return the facts of layer i, which may still be in setup.

    went_back: whether its backward ran; room: bytes for a blob's tiles.
    """
    node = net.nodes[i] if i < len(net.nodes) else None  # None: in setup, or failed there
    tops, bottoms = (node.tops, node.bottoms) if node else ([], [])
    bottom_names = list(layer.param.bottom)
    top_names = node.top_names if node else list(layer.param.top)
    shared = {id(memory) for blob in bottoms for memory in (blob.data_memory, blob.diff_memory)}
    return LayerFacts(
        name=layer.name,
        type=layer.type,
        place=str(layer.source.at()) if layer.source else None,
        fork=str(choice_of(layer) or ""),
        bottoms=bottom_names,
        tops=list(top_names),
        in_place=bool(set(top_names) & set(bottom_names)),
        is_split=isinstance(layer, Split),
        param=to_text(layer.param),
        details=on_one_line(layer_details(layer.param)),
        attributes=attributes(layer.param),
        top_bytes=bytes_in_use(tops, without=shared),
        params=[_param(layer, j, went_back, room) for j in range(len(layer.blobs))],
        roi=ran.roi,
        reads=[[reads_of(node, b, t) for b in range(len(bottoms))] for t in range(len(tops))] if node else [],
        covered=type(layer) in explains,
        example=ran.example,
        targets=ran.targets,
    )


def attributes(param: caffe_pb2.LayerParameter) -> dict[str, str]:
    """Return the fields of a layer's parameters that are set, as text; messages in them, such as fillers, are left out."""
    blocks = [block for field, block in param.ListFields() if field.name.endswith("_param")]
    return {
        field.name: _attribute(field, value)
        for block in blocks
        for field, value in block.ListFields()
        if not field.message_type
    }


def _attribute(field: FieldDescriptor, value: Any) -> str:
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    texts = [field.enum_type.values_by_number[one].name if field.enum_type else _scalar(one) for one in values[:MOST_VALUES]]
    return shortened(on_one_line(", ".join(texts) + ", ..." * (len(values) > MOST_VALUES)), MOST_LETTERS)


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _param(layer: Layer, j: int, went_back: bool, room: int) -> ParamShot:
    blob = layer.blobs[j]
    diff = shot(blob.read_diff(), room, weights=True) if went_back and layer.param_propagate_down[j] else None
    return ParamShot(weight_name(layer, j), shot(blob.read_data(), room, weights=True), diff)


def reduced(steps: Sequence[Step], layers: Sequence[LayerFacts]) -> list[str]:
    """Return notes on data that is shrunk, sampled or cut."""
    notes = []
    blobs = [blob.shot for step in steps for blob in step.blobs]
    shots = blobs + [part for layer in layers for param in layer.params for part in (param.data, param.diff) if part]
    kept = [item.tiles for item in shots if item.tiles]
    if any(tiles.shrunk > 1 for tiles in kept):
        most = max(tiles.shrunk for tiles in kept)
        notes.append(f"large maps are shrunk: a pixel is the mean of up to {most} x {most} values")
    if any(len(tiles.pixels) < tiles.channels for tiles in kept):
        notes.append(f"blobs with many maps show the first ones, at most {MOST_TILES}, fewer if large")
    if any(item.histogram and item.histogram.every > 1 for item in shots):
        notes.append(f"histograms of more than {SAMPLED} values count every k-th")
    if any(item.shape[0] > 1 for item in blobs if item.tiles):
        notes.append("the maps are of the first item of a batch")
    return notes + [note for layer in layers if layer.roi for note in layer.roi.notes(layer.name)]


class TakenMemory:
    """The bytes_in_use of all blobs seen, updated blob by blob."""

    def __init__(self) -> None:
        self.bytes = 0
        self._memories: dict[int, tuple[Blob, tuple[SyncedMemory, SyncedMemory]]] = {}
        self._users: Counter[int] = Counter()
        self._bytes: dict[int, int] = {}

    def update(self, blobs: Iterable[Blob]) -> None:
        """Add these blobs, or count them again after a change."""
        for blob in blobs:
            memories = blob.data_memory, blob.diff_memory
            self._users.update(map(id, memories))  # before the old ones are dropped: an unchanged memory never has 0 users
            for memory in memories:
                taken = 0 if memory.state is MemoryState.UNINITIALISED else memory.size * memory.dtype.itemsize
                self.bytes += taken - self._bytes.get(id(memory), 0)
                self._bytes[id(memory)] = taken
            _, before = self._memories.get(id(blob), (blob, ()))
            self._memories[id(blob)] = blob, memories  # holding the blob reserves its id
            for memory in before:
                self._users[id(memory)] -= 1
                if not self._users[id(memory)]:
                    self.bytes -= self._bytes.pop(id(memory))


def bytes_in_use(blobs: Iterable[Blob], without: Iterable[int] = ()) -> int:
    """Return the memory of these blobs' data and diffs; shared memory counts once. without: ids of memories to leave out."""
    taken = {
        id(memory): memory.size * memory.dtype.itemsize
        for blob in blobs
        for memory in (blob.data_memory, blob.diff_memory)
        if memory.state is not MemoryState.UNINITIALISED
    }
    return sum(taken.values()) - sum(taken.get(key, 0) for key in set(without))
