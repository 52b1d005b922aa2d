"""Class activation maps: the cells of a layer's maps that raise a score. Source: Grad-CAM (Selvaraju et al., 2017).

    alpha_k = the mean of dy/dA_k over the cells of map k
    L[h, w] = max(0, the sum over k of alpha_k A_k[h, w])

y is the score before its Softmax. A is the layer's top as later layers in place leave it. If an average pooling and an
InnerProduct follow, L is the CAM of Zhou et al. (2016) without its negative part, divided by the number of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from minicaffe.data.drawings import LEAST_WIDTH, class_name, colour
from minicaffe.data.images import resize_bilinear
from minicaffe.detection.classification import best_classes, scores_blob
from minicaffe.detection.detect import Detections
from minicaffe.detection.inputs import image_inputs
from minicaffe.errors import Error
from minicaffe.layer_list import Node
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.shape.rearranged import Rearranged
from minicaffe.net import Net
from minicaffe.pycaffe_net import gradient_from, way_to
from minicaffe.reads import Axis

from .explanations.explanation import SHARE, SumExplanation
from .explanations.terms import Terms, number, place
from .receptive_fields import reads_of
from .trace import colours, on_scale
from .trace_facts import MOST_CLASSES, detection_score, names_of

FORMULA = "L[h, w] = max(0, the sum over k of alpha_k * A_k[h, w])\nalpha_k is the mean of dy/dA_k over the cells of map k"
BEST = "best"
SCORES = "best, class:K or detection:K"
MOST_SCORES, LEAST_SCORE = 20, 0.5
"""The most detections with a map on a page, and their lowest score."""
PHOTO = 0.4
"""The share of the photo in a picture of a map; the rest is the map."""


class Score(NamedTuple):
    """A score: element number `element` of the first top, flat, of layer number `layer`.

    name: that of the class and its score after the Softmax; words: also the blob and the score before it. box: of a detection,
    in pixels of the image.
    """

    layer: int
    element: int
    name: str
    words: str
    class_index: int
    box: list[float] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMap(SumExplanation):
    """Grad-CAM of a score at a layer: map (h, w) and, for each channel, alpha. The terms explain the cell `at` of the map."""

    score: Score
    map: NDArray[np.float64]
    alpha: NDArray[np.float64]

    def heading(self) -> str:
        return (
            f'Grad-CAM of {self.score.words} at the layer "{self.layer}": L[{self.at[0]}, {self.at[1]}] = {number(self.value)}'
        )

    def work(self, rows: int) -> list[str]:
        below = ["  negative, so that the map has 0 here"] * (self.terms.total() < 0)
        height, width = self.map.shape
        row, column = np.unravel_index(self.map.argmax(), self.map.shape)
        count = np.count_nonzero(self.map)
        cells = f"  {count or 'none'} of the {height} x {width} cells {'is' if count < 2 else 'are'} above 0"
        peak = f"; the greatest is {number(self.map.max())}, at row {row}, column {column}" if count else ""
        if not self.alpha.any():
            peak = ": the score depends on none of these maps, so name another layer"
        return [*super().work(rows), *below, cells + peak]

    def verdict(self) -> str:
        return super().verdict().replace("by the layer", "in the map")

    def picture(self, image: NDArray[np.uint8]) -> Image.Image:
        """Return image (H, W, 3), BGR, in grey with the map stretched over it: 0 is black, the greatest value light yellow."""
        times = -(-LEAST_WIDTH // image.shape[1])
        photo = Image.fromarray(np.ascontiguousarray(image[..., ::-1])).convert("L")
        grey = np.asarray(photo.resize((photo.width * times, photo.height * times), Image.Resampling.NEAREST), np.float64)
        whole = resize_bilinear(self.map[..., None].astype(np.float32), *grey.shape)[..., 0]
        mixed = PHOTO * grey[..., None] + (1 - PHOTO) * colours(*on_scale(whole))
        drawn = Image.fromarray(mixed.round().clip(0, 255).astype(np.uint8))
        if self.score.box:
            box = [(v + k // 2) * times - k // 2 for k, v in enumerate(self.score.box)]  # corners are pixels, both included
            ImageDraw.Draw(drawn).rectangle(box, outline=colour(self.score.class_index), width=2)
        return drawn


def class_score(net: Net, wanted: str, found: Detections | None = None, names: Sequence[str] | None = None) -> Score:
    """Return the score that `wanted` names, in a net that has run forward.

    wanted: "class:K", class K of a classifier; "detection:K", detection K of `found`, where 0 is the best; "best", the best
    class or detection. Raises Error for anything that the net lacks.
    """
    kind, _, text = wanted.partition(":")
    blob = scores_blob(net)
    if wanted == BEST:
        kind = "class" if blob else "detection"
        text = str(int(net.blobs[blob].read_data()[0].argmax())) if blob else "0"
    if kind not in ("class", "detection") or not text.isdecimal():
        raise Error(f"--cam {wanted}: give {SCORES}")
    k = int(text[:9])
    if kind == "detection":
        if found is None:
            raise Error(f"--cam {wanted}: no detections: the net is no detector, or --image is not given")
        if k >= len(found):
            raise Error(f"--cam {wanted}: the image has {len(found)} detections: give detection:0 for the best one")
        blob, at = detection_score(net, k, found)
        which, box = int(found.classes[k]), [float(v) for v in found.boxes[k]]
        name = f"detection {k}, {class_name(which, names_of(net, names))} {found.scores[k]:.4f}"
        return _before_softmax(net, blob, at, name, which, box)
    if blob is None:
        raise Error(f"--cam {wanted}: the net is no classifier with a Softmax of one score for each class: give detection:K")
    classes = net.blobs[blob].shape[1]
    if k >= classes:
        raise Error(f"--cam {wanted}: the net has {classes} classes: give class:0 to class:{classes - 1}")
    return _before_softmax(net, blob, (0, k), f"{class_name(k, names)} {net.blobs[blob].read_data()[0, k].item():.4f}", k)


def class_scores(net: Net, found: Detections | None, names: Sequence[str] | None = None) -> list[Score]:
    """Return the scores of the best detections, or of the best classes. Raises Error for a net without either."""
    best = class_score(net, BEST, found, names)
    if found is not None and best.box:
        count = max(1, min(MOST_SCORES, int((found.scores >= LEAST_SCORE).sum())))
        return [class_score(net, f"detection:{k}", found, names) for k in range(count)]
    blob = scores_blob(net)
    assert blob is not None
    classes = best_classes(net.blobs[blob].read_data()[0].reshape(-1), names, MOST_CLASSES)
    return [class_score(net, f"class:{one['class_index']}", found, names) for one in classes]


def _before_softmax(
    net: Net, blob: str, at: tuple[int, int], name: str, class_index: int, box: list[float] | None = None
) -> Score:
    """Return the score that became element `at` of a blob through a Softmax and layers that only give it another shape."""
    shape = net.blobs[blob].shape
    index = int(np.ravel_multi_index(at, (shape[0], int(np.prod(shape[1:])))))
    writer, is_past = _writer(net, blob, len(net.nodes)), False
    while True:
        node = net.nodes[writer]
        is_softmax = isinstance(node.layer, Softmax) and not is_past
        if (
            not (is_softmax or node.layer.only_shares)
            or len(node.bottoms) != 1
            or node.bottoms[0].count != net.blobs[blob].count
        ):
            break
        is_past = is_past or is_softmax
        blob = node.bottom_names[0]
        writer = _writer(net, blob, writer)
    if blob != net.nodes[writer].top_names[0]:
        raise net.layers[writer].error(f'"{blob}", which holds the scores, is not its first top')
    scores = net.blobs[blob]
    where = place(blob, [int(i) for i in np.unravel_index(index, scores.shape)])
    words = f"{name} ({where} = {number(scores.read_data().flat[index])})"
    return Score(writer, index, name, words, class_index, box)


def _writer(net: Net, blob: str, before: int) -> int:
    """Return the number of the last layer before layer `before` that writes the blob."""
    return max(i for i, node in enumerate(net.nodes[:before]) if blob in node.top_names)


def class_map(net: Net, layer: str, score: Score, at: Sequence[int] | None = None) -> ClassMap:
    """Return Grad-CAM of a score at the first top of a layer, for the image that the net has just run on.

    at: the row and column of the cell to explain, by default the greatest. Weights and their diffs do not change. Raises Error
    if the top has no maps of the image, or if the score does not depend on it.
    """
    i = net.index_of(layer)
    way = way_to(net, score.layer)
    _check_maps(net, i, score, way)
    blob = net.nodes[i].tops[0]
    end = 1 + _writer(net, net.nodes[i].top_names[0], score.layer)
    diff = np.zeros(net.nodes[score.layer].tops[0].shape, net.dtype)
    diff.flat[score.element] = 1
    gradient_from(net, score.layer, diff, end)
    maps, gradient = (array[0].astype(np.float64) for array in (blob.read_data(), blob.read_diff()))
    alpha = gradient.mean(axis=(1, 2))
    cells = np.maximum(np.tensordot(alpha, maps, 1), 0)
    if not np.isfinite(cells).all():
        raise net.layers[i].error("its maps or their gradients are not finite: there is no class activation map")
    row, column = _cell(net, i, at, cells)
    values = maps[:, row, column]
    channels = np.arange(len(alpha))
    index = np.stack([np.zeros_like(channels), channels, np.full_like(channels, row), np.full_like(channels, column)], axis=1)
    terms = Terms.of(net.nodes[i].top_names[0], index, {"alpha": alpha, "A": values}, alpha * values)
    return ClassMap(
        layer=layer,
        type=net.layers[i].type,
        blob="L",
        at=(row, column),
        value=float(cells[row, column]),
        computed=max(terms.total(), 0.0),
        tolerance=SHARE * terms.size(),
        formula=FORMULA,
        terms=terms,
        score=score,
        map=cells,
        alpha=alpha,
    )


def _check_maps(net: Net, i: int, score: Score, way: Sequence[Node]) -> None:
    """Raise Error unless the first top of layer i has maps of the image, on which the score depends."""
    layer, shape = net.layers[i], net.nodes[i].tops[0].shape if net.nodes[i].tops else ()
    on_way = [k for k in range(score.layer) if any(net.nodes[k] is node for node in way)]
    fit = [k for k in on_way if net.nodes[k].bottoms and not net.layers[k].only_shares and _has_maps(net, k)]

    def hint(able: Sequence[int]) -> str:
        return f': name another layer, such as "{net.layers[able[-1]].name}"' if able else ""

    if not _has_maps(net, i):
        but = "but it moves their cells" if _has_shape(net, shape) else f"but its top has shape {shape}"
        before = [k for k in fit if k < i] or fit
        raise layer.error(f"a class activation map needs maps of the image (N, C, H, W), {but}{hint(before)}")
    if i not in on_way:
        raise layer.error(f"{score.words} does not depend on it{hint(fit)}")


def _has_maps(net: Net, i: int) -> bool:
    """Return whether the first top of layer i has maps of the images, and each cell lies where its pixels do."""
    node, moves = net.nodes[i], list[Node]()
    if not node.tops or not _has_shape(net, node.tops[0].shape):
        return False
    while node.bottoms:
        if node.layer.only_shares or isinstance(node.layer, Rearranged):
            moves.append(node)
        elif node.bottoms[0].shape != node.tops[0].shape or reads_of(node, 0, 0) != (Axis(), Axis()):
            break  # it may compute with other cells
        node = net.nodes[i := _writer(net, node.bottom_names[0], i)]
    shape = moves[-1].bottoms[0].shape if moves else ()
    if len(shape) != 4:
        return not moves
    rows, columns = (np.broadcast_to(places, shape) for places in np.ogrid[: shape[2], : shape[3]])
    return _are_places(rows, moves, 2) and _are_places(columns, moves, 3)


def _are_places(places: NDArray[np.intp], moves: Sequence[Node], axis: int) -> bool:
    """Return whether the places (N, C, H, W) of numbers on an axis are in order after layers that move the numbers."""
    length, moved = places.shape[axis], np.ascontiguousarray(places)
    for node in reversed(moves):
        view = node.layer.arranged(moved) if isinstance(node.layer, Rearranged) else moved
        moved = np.ascontiguousarray(view).reshape(node.tops[0].shape)
    now = moved.shape[axis]
    scale = min(length, now)  # a layer such as PixelShuffle changes the size
    ordered = (np.arange(now) * scale // now).reshape(-1, *[1] * (3 - axis))
    return bool((moved * scale // length == ordered).all())


def _has_shape(net: Net, shape: Sequence[int]) -> bool:
    """Return whether a shape is that of maps of the images: maps of rois have another number of items."""
    inputs = image_inputs(net)
    images = net.blobs[inputs[0]].shape[0] if inputs else 1
    return len(shape) == 4 and shape[0] == images and shape[2] * shape[3] > 1


def _cell(net: Net, i: int, at: Sequence[int] | None, cells: NDArray[np.float64]) -> tuple[int, int]:
    if at is None:
        row, column = np.unravel_index(cells.argmax(), cells.shape)
        return int(row), int(column)
    if len(at) != 2 or not all(0 <= v < size for v, size in zip(at, cells.shape, strict=True)):
        height, width = cells.shape
        raise net.layers[i].error(
            f"--at {','.join(map(str, at))}: the map has {height} x {width} cells: give a row and a column"
        )
    return at[0], at[1]
