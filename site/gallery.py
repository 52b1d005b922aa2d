"""The pages of the gallery, and the page on which minicaffe runs in the browser."""

from __future__ import annotations

from typing import NamedTuple


class Shown(NamedTuple):
    """A page of the gallery.

    words: the command that writes it in examples/, without `minicaffe` and `-o`. opens: where, as in the page's address.
    lesson: the notebook, without .ipynb, whose page ends with a link to it.
    """

    name: str
    title: str
    text: str
    words: str
    opens: str = ""
    lesson: str = ""

    @property
    def address(self) -> str:
        """Its place on the site, and where it opens."""
        return f"traces/{self.name}.html{'#' * bool(self.opens)}{self.opens}"


SCENE = "--image shapes/scene.png --cfg shapes/shapes.yml --classes shapes/classes.txt --backward"
SCALED = "--mean 128,128,128 --scale-factor 0.0078125 --backward"
GALLERY = (
    Shown(
        "rfcn",
        "R-FCN",
        "A guided tour, best after lesson 6: from the photo through anchors, proposals and votes to a detection.",
        f"trace shapes/rfcn/test.prototxt shapes/rfcn/shapes_rfcn.caffemodel {SCENE} --tour rfcn",
        "tour=rfcn",
        "6-two-heads",
    ),
    Shown(
        "faster_rcnn",
        "Faster R-CNN",
        "A guided tour, best after lesson 5: two boxes that ROIPooling cannot distinguish.",
        f"trace shapes/faster_rcnn/test.prototxt shapes/faster_rcnn/shapes_faster_rcnn.caffemodel {SCENE} --tour roi-pooling",
        "tour=roi-pooling",
        "5-roi-pooling",
    ),
    Shown(
        "ssd",
        "SSD",
        "From a prior on one of four maps to a detection, and the boxes that it suppresses.",
        "trace shapes/ssd/test.prototxt shapes/ssd/shapes_ssd.caffemodel --image shapes/scene.png"
        " --classes shapes/classes.txt --backward",
        "layer=detection_out&view=result&detection=0",
        "10-beyond",
    ),
    Shown(
        "deformable",
        "Deformable R-FCN",
        "Convolutions and rois whose samples move, with their learned offsets.",
        f"trace deformable/test.prototxt deformable/deformable_rfcn.caffemodel {SCENE}",
        "layer=conv8",
    ),
    Shown(
        "training",
        "A training step of R-FCN",
        "A guided tour, best after lesson 7: the labels of anchors and rois on the image, four losses, and their gradients.",
        "trace shapes/rfcn/train.prototxt --phase TRAIN --roidb shapes/scene.json --cfg shapes/shapes.yml --backward"
        " --tour learning",
        "tour=learning",
        "7-targets",
    ),
    Shown(
        "film",
        "A training as a film",
        "An R-FCN learns from random weights: losses, proposals, detections and filters at every 400th iteration.",
        "film shapes/film",
    ),
    Shown(
        "segments",
        "SegNet",
        "Pooling that keeps its mask, and the Upsample layers that read it.",
        f"trace segments/test.prototxt segments/segments.caffemodel --image segments/scene.png {SCALED}",
        "layer=up1",
    ),
    Shown(
        "reader",
        "CRNN",
        "An LSTM along the columns of an image, forwards and backwards.",
        f"trace reader/test.prototxt reader/reader.caffemodel --image reader/string.png {SCALED}",
    ),
    Shown(
        "digits",
        "A classifier of digits",
        "Two convolutions and two fully connected layers, from 8 x 8 pixels to ten scores.",
        "trace digits/test.prototxt digits/digits.caffemodel --image digits/digit.png"
        " --mean 0,0,0 --scale-factor 0.00390625 --backward",
    ),
    Shown(
        "roi_pooling",
        "ROIPooling alone",
        "A head without its net: maps and rois in, pooled grids out.",
        "trace heads/roi_pool5.prototxt --random-weights --backward",
        "layer=roi_pool5",
    ),
    Shown(
        "psroi_pooling",
        "PSROIPooling alone",
        "The head of an R-FCN with random score maps.",
        "trace heads/psroi.prototxt --random-weights --backward",
        "layer=psroipooled_cls_rois",
    ),
)

TEN_MINUTES = (
    "examples/shapes/rfcn/test.prototxt examples/shapes/rfcn/shapes_rfcn.caffemodel --image examples/shapes/scene.png"
    " --cfg examples/shapes/shapes.yml --classes examples/shapes/classes.txt --tour ten-minutes --tour rfcn"
)
"""The arguments of `minicaffe live` for this page. It shows them, so they hold in the root of a clone."""

PYODIDE_FILES = "pyodide*", "python_stdlib.zip", "numpy-*", "pillow-*"
"""What this page loads from a folder with Pyodide's files."""
