"""The lessons' interactive figures: pages of their own, which a notebook shows in a frame.

A figure is the script figure_files/NAME.js, on top of figure_files/common.js and some of the trace page's scripts, with data
from a layer. It needs no network and no kernel, so that it also works on the site.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe import ops
from minicaffe.blob import Array
from minicaffe.data.image_bytes import encode_image
from minicaffe.detection import evaluation
from minicaffe.detection.evaluation import ImageBoxes
from minicaffe.errors import Error
from minicaffe.files import replacing
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.proposal.anchor_target import AnchorTarget
from minicaffe.layers.proposal.anchors import by_position
from minicaffe.layers.proposal.param_str import DEFAULTS, layer_parameters
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.net import Net
from minicaffe.tracing.receptive_fields import receptive_field

HERE = files("minicaffe.tutorials") / "figure_files"
TRACE_PAGE = files("minicaffe.tracing") / "trace_page_files"


class Figure:
    """An interactive figure.

    Parameters
    ----------
    name : of the script in figure_files
    title : what the figure shows, for screen readers
    height : of the frame, in pixels, at a width of 720
    uses : names of the trace page's scripts that the script uses, besides elements.js
    data : for the script, which reads it as `data`; arrays become nested lists
    """

    def __init__(self, name: str, title: str, height: int, *, uses: Sequence[str] = (), **data: Any) -> None:
        self.name, self.title, self.height, self.uses, self.data = name, title, height, uses, data

    def page(self) -> str:
        """Return the figure as an HTML page."""
        data = json.dumps(self.data, default=lambda value: np.asarray(value).tolist(), allow_nan=False).replace("<", "\\u003c")
        scripts = [TRACE_PAGE / f"{name}.js" for name in ("elements", *self.uses)]
        scripts += [HERE / "common.js", HERE / f"{self.name}.js"]
        script = "\n".join(file.read_text(encoding="utf-8") for file in scripts)
        style = (HERE / "common.css").read_text(encoding="utf-8")
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{style}</style></head><body><main><h1>{escape(self.title)}</h1></main>"
            f"<script>const data = {data};\n{script}\ndocument.documentElement.dataset.ready = '';</script></body></html>"
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the figure as an HTML file."""
        with replacing(path) as temporary:
            temporary.write_text(self.page(), encoding="utf-8")

    def _repr_html_(self) -> str:
        style = f"width:100%;max-width:760px;height:{self.height}px;border:0"
        return f'<iframe title="{escape(self.title)}" style="{style}" srcdoc="{escape(self.page())}"></iframe>'

    def __repr__(self) -> str:
        return f"<figure: {self.title}>"


def picture(image: NDArray[np.uint8]) -> str:
    """Return an image (height, width, 3; blue, green, red) as the data URL of a JPEG, for a figure's data."""
    return "data:image/jpeg;base64," + base64.b64encode(encode_image(image, "jpg", quality=80)).decode()


def iou(boxes: tuple[tuple[float, ...], tuple[float, ...]] = ((60, 40, 179, 139), (120, 70, 259, 159))) -> Figure:
    """Return a figure of two boxes to drag, and their intersection over union. boxes: x1, y1, x2, y2 at first."""
    return Figure("iou", "Two boxes and their intersection over union", 330, boxes=boxes)


def precision_recall(
    image: NDArray[np.uint8],
    truth: NDArray[Any],
    boxes: NDArray[Any],
    scores: NDArray[Any],
    ious: Sequence[float] = (0.5, 0.75),
) -> Figure:
    """Return a figure of a class's detections on an image, and the precision and recall of those above a score.

    Parameters
    ----------
    image : (height, width, 3); blue, green, red
    truth : (m, 4), the true boxes
    boxes, scores : (n, 4) and (n,), the detections
    ious : the least overlaps of a true positive to choose from
    """
    order = np.argsort(-scores, kind="stable")
    found = ImageBoxes(boxes[order], scores[order])
    levels = []
    for iou in ious:
        recall, precision = evaluation.precision_recall([found], [ImageBoxes(truth)], threshold=iou)
        areas = evaluation.all_point_area(recall, precision), evaluation.eleven_point_area(recall, precision)
        hits = evaluation.true_positives(found.boxes, truth, iou)
        levels.append({"iou": iou, "hits": hits, "recall": recall, "precision": precision, "areas": areas})
    data = {"truth": truth, "boxes": found.boxes.round(1), "scores": scores[order].round(4), "levels": levels}
    title = "Detections above a score, their precision and recall"
    return Figure("precision_recall", title, 560, photo=picture(image), size=image.shape[1::-1], **data)


def receptive_fields(net: Net, image: NDArray[np.uint8], layers: Sequence[str]) -> Figure:
    """Return a figure of the pixels that a cell of a map depends on, for a cell and a layer to choose.

    Parameters
    ----------
    net : after a forward pass; its blob `data` has the image's size
    image : (height, width, 3); blue, green, red
    layers : names of convolutions, each of which reads the one before. Each also names its top
    """
    shown = []
    for name in layers:
        window, maps = cast(Convolution, net.layers[net.index_of(name)]).window, net.blobs[name].data[0]
        rows = [receptive_field(net, name, row, 0)["data"].rows for row in range(maps.shape[1])]
        columns = [receptive_field(net, name, 0, column)["data"].columns for column in range(maps.shape[2])]
        fields = [[(axis.start, axis.stop - 1) for axis in axes] for axes in (rows, columns)]
        convolution = {"kernel": window.kernel[0], "stride": window.stride[0], "dilation": window.dilation[0]}
        grey = maps.mean(axis=0)
        grey = 255 * (grey - grey.min()) / max(float(np.ptp(grey)), 1e-9)
        map_picture = picture(np.repeat(grey.round().astype(np.uint8)[..., None], 3, axis=2))
        shown.append({"name": name, "rows": fields[0], "columns": fields[1], "map": map_picture, **convolution})
    title = "The pixels that a cell of a map depends on"
    return Figure("receptive_fields", title, 600, photo=picture(image), size=image.shape[1::-1], layers=shown)


def pyramid(roi: tuple[float, ...] = (80, 60, 239, 219)) -> Figure:
    """Return a figure of a roi to drag, and the level of a feature pyramid from which it is pooled.

    roi: x1, y1, x2, y2 at first, within 640 x 480 pixels.
    """
    levels = [{"level": level, "stride": 2**level} for level in range(2, 6)]
    title = "The level of a feature pyramid for a roi"
    return Figure("pyramid", title, 560, roi=roi, size=(640, 480), levels=levels, middle={"level": 4, "side": 224})


def anchors(
    net: Net, image: NDArray[np.uint8], truth: ArrayLike, names: Sequence[str], cell: tuple[int, int], anchor: int
) -> Figure:
    """Return a figure that picks an anchor: its cell on the photo, its size and its ratio.

    It shows the anchor's corners, its overlap with the nearest true box, and its objectness, after the net's forward.

    Parameters
    ----------
    net : a net with a Proposal layer
    image : the photo (height, width, 3), of any size
    truth : the true boxes (G, 4), in pixels of the net's input
    names : the classes of these boxes (G,)
    cell, anchor : row and column of the cell, and the number of its anchor, at first
    """
    layer, (scores, _, info) = _proposal(net)
    given = DEFAULTS | layer_parameters(layer)
    objectness = by_position(scores[:, len(layer.anchors) :], 1)
    return Figure(
        "anchors",
        "Pick an anchor",
        780,
        photo=picture(image),
        size=info.reshape(-1)[1::-1],
        map=scores.shape[2:],
        stride=layer.stride,
        anchors=layer.anchors,
        base=given["base_size"],
        ratios=given["ratios"],
        scales=given["scales"],
        objectness=base64.b64encode((objectness * 100).round().astype(np.uint8).tobytes()).decode(),
        truth=np.asarray(truth, np.float64).round(2),
        names=names,
        cell=cell,
        first=anchor,
    )


def deltas(net: Net, image: NDArray[np.uint8], cell: tuple[int, int], anchor: int, truth: ArrayLike) -> Figure:
    """Return a figure of four sliders that move an anchor. cell, anchor, truth: as in anchors, with one true box (4,)."""
    layer, (scores, regressions, info) = _proposal(net)
    (height, width), (row, column) = scores.shape[2:], cell
    number = (row * width + column) * len(layer.anchors) + anchor
    box = ops.shifted_anchors(layer.anchors, height, width, layer.stride)[number]
    target = np.asarray(truth, np.float64).round(2)
    return Figure(
        "deltas",
        "Move an anchor by its deltas",
        790,
        photo=picture(image),
        size=info.reshape(-1)[1::-1],
        anchor=box,
        truth=target,
        net=by_position(regressions, 4)[number],
        target=ops.bbox_transform(box[None], target[None])[0],
    )


def nms(image: NDArray[np.uint8], size: tuple[float, float], dets: ArrayLike, threshold: float) -> Figure:
    """Return a figure that suppresses boxes step by step.

    Parameters
    ----------
    image : the photo (height, width, 3), of any size
    size : the height and width in whose pixels the boxes are
    dets : boxes and scores (N, 5)
    threshold : of the overlap, at first
    """
    rows = np.asarray(dets, np.float64)
    rows = rows[np.argsort(-rows[:, 4], kind="stable")]
    boxes, scores, title = rows[:, :4].round(2), rows[:, 4].round(6), "Non-maximum suppression, box by box"
    return Figure("nms", title, 700, photo=picture(image), size=size[::-1], boxes=boxes, scores=scores, threshold=threshold)


def pools(values: Array, roi: tuple[float, ...], scale: float) -> Figure:
    """Return a figure of one roi to drag over a map, and the bins that each ROI layer reads there.

    Parameters
    ----------
    values : (H, W) ndarray
        The map.
    roi : tuple of float
        x1, y1, x2, y2 at first, in pixels of the image.
    scale : float
        The factor from pixels of the image to cells of the map.
    """
    title = "One roi through five ROI layers"
    return Figure("pools", title, 1180, uses=("roi_geometry", "pool_plans"), map=values, roi=roi, scale=scale)


def votes(maps: Array, photo: NDArray[np.uint8], roi: tuple[float, ...], classes: Sequence[str], chosen: int) -> Figure:
    """Return a figure of one roi to drag over a photo, and the votes of R-FCN's score maps.

    Parameters
    ----------
    maps : (K * G * G, H, W) ndarray
        The score maps of K classes, within ±128: the figure rounds them to parts of 256.
    photo : (S * H, S * W, 3) ndarray
        The part of the photo that the maps cover, at the stride S: blue, green, red.
    roi : tuple of float
        x1, y1, x2, y2 at first, in pixels of the photo.
    classes : sequence of str
        Their names.
    chosen : int
        The index of the class that is shown at first.
    """
    count, height, width = maps.shape
    packed = base64.b64encode(np.round(maps * 256).astype("<i2").tobytes()).decode()
    rest = {"shape": (height, width), "group": math.isqrt(count // len(classes)), "scale": width / photo.shape[1]}
    title = "One roi and the votes of the score maps"
    uses = "roi_geometry", "pool_plans"
    return Figure(
        "votes", title, 740, uses=uses, maps=packed, photo=picture(photo), roi=roi, classes=classes, chosen=chosen, **rest
    )


def anchor_labels(net: Net) -> Figure:
    """Return a figure of the anchors of a training step, coloured by their labels, with sliders for the two thresholds.

    net: a detector's training net after a forward pass, with the blobs data and gt_boxes and an AnchorTarget layer.
    """
    layer = next(layer for layer in net.layers if isinstance(layer, AnchorTarget))
    image, truth = net.blobs["data"].data[0], net.blobs["gt_boxes"].data[:, :4]
    grid = net.blobs[net.bottom_names[layer.name][0]].shape[2:]
    pixels = image.transpose(1, 2, 0) + net.settings.pixel_means
    return Figure(
        "anchor_labels",
        "Which anchors are objects, background or ignored?",
        620,
        picture=picture(pixels.clip(0, 255).astype(np.uint8)),
        size=[image.shape[2], image.shape[1]],
        anchors=layer.anchors,
        grid=grid,
        stride=layer.stride,
        truth=truth,
        low=net.settings.train.rpn_negative_overlap,
        high=net.settings.train.rpn_positive_overlap,
    )


def training(
    image: NDArray[np.uint8], classes: Sequence[str], runs: Sequence[dict[str, Any]], threshold: float, scenes: int
) -> Figure:
    """Return a figure of trainings side by side, with a slider over their frames.

    Parameters
    ----------
    image : (height, width, 3) of uint8; blue, green, red
    classes : the names, with the background
    runs : for each training its name, its losses, and its frames: iteration, boxes, scores, classes, ap (average precision)
    threshold : the lowest score of the frames' boxes
    scenes : on how many scenes ap was measured
    """
    size = [image.shape[1], image.shape[0]]
    more: dict[str, Any] = {"classes": classes, "runs": runs, "threshold": threshold, "scenes": scenes}
    return Figure("training", "Trainings side by side", 620, picture=picture(image), size=size, **more)


def im2col() -> Figure:
    """Return a figure of a map's windows as the columns of a matrix: a window to slide, its column, its product."""
    numbers = np.array([[1, 0, 2, 3, 1, 0], [4, 1, 0, 2, 5, 1], [0, 3, 6, 1, 0, 2], [2, 0, 1, 4, 3, 0], [5, 2, 0, 1, 2, 6]])
    weight = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]])
    variants = []
    for stride, pad in ((1, 0), (1, 1), (2, 0), (2, 1)):
        window = f"convolution_param {{ kernel_size: 3 stride: {stride} pad: {pad}"
        net = Net(
            parse_net(
                'input: "x" input_shape { dim: 1 dim: 1 dim: 5 dim: 6 }'
                f'layer {{ name: "columns" type: "Im2col" bottom: "x" top: "columns" {window} }} }}'
                f'layer {{ name: "conv" type: "Convolution" bottom: "x" top: "y" {window} bias_term: false num_output: 1 }} }}'
            )
        )
        net.params["conv"][0].data[0, 0] = weight
        net.blobs["x"].data[0, 0] = numbers
        found = net.forward()
        columns = found["columns"][0].reshape(9, -1)
        variants.append({"stride": stride, "pad": pad, "columns": columns.copy(), "top": found["y"][0, 0].copy()})
    return Figure("im2col", "A convolution as one product of matrices", 640, map=numbers, filter=weight, variants=variants)


def _proposal(net: Net) -> tuple[Proposal, list[NDArray[np.floating[Any]]]]:
    """Return the net's Proposal layer, and the data of its bottoms."""
    for layer in net.layers:
        if isinstance(layer, Proposal):
            return layer, [net.blobs[name].data for name in layer.param.bottom]
    raise Error(f"{net.file} has no Proposal layer; the figure needs a net with an RPN")
