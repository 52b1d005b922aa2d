"""The lessons' interactive figures: pages of their own, which a notebook shows in a frame.

A figure is the script figure_files/NAME.js, on top of figure_files/common.js and the trace page's elements.js, with data from a
layer. It needs no network and no kernel, so that it also works on the site.
"""

from __future__ import annotations

import base64
import json
import os
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.image_bytes import encode_image
from minicaffe.files import replacing
from minicaffe.layers.proposal.anchor_target import AnchorTarget
from minicaffe.net import Net

HERE = files("minicaffe.tutorials") / "figure_files"
TRACE_PAGE = files("minicaffe.tracing") / "trace_page_files"


class Figure:
    """An interactive figure.

    Parameters
    ----------
    name : of the script in figure_files
    title : what the figure shows, for screen readers
    height : of the frame, in pixels, at a width of 720
    data : for the script, which reads it as `data`; arrays become nested lists
    """

    def __init__(self, name: str, title: str, height: int, **data: Any) -> None:
        self.name, self.title, self.height, self.data = name, title, height, data

    def page(self) -> str:
        """Return the figure as an HTML page."""
        data = json.dumps(self.data, default=lambda value: np.asarray(value).tolist(), allow_nan=False).replace("<", "\\u003c")
        scripts = [TRACE_PAGE / "elements.js", HERE / "common.js", HERE / f"{self.name}.js"]
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


def picture(image: NDArray[np.uint8], quality: int = 80) -> str:
    """Return an image (height, width, 3; blue, green, red) as the data URL of a JPEG, for a figure's data."""
    return "data:image/jpeg;base64," + base64.b64encode(encode_image(image, "jpg", quality=quality)).decode()


def iou(boxes: tuple[tuple[float, ...], tuple[float, ...]] = ((60, 40, 179, 139), (120, 70, 259, 159))) -> Figure:
    """Return a figure of two boxes to drag, and their intersection over union. boxes: x1, y1, x2, y2 at first."""
    return Figure("iou", "Two boxes and their intersection over union", 330, boxes=boxes)


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
