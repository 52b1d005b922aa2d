"""The pages of the gallery, and the page on which minicaffe runs in the browser."""

from __future__ import annotations

from typing import NamedTuple


class Shown(NamedTuple):
    """A page of `minicaffe trace`, of a net in examples/. words: the command's arguments."""

    name: str
    title: str
    text: str
    words: str


SCENE = "--image shapes/scene.png --cfg shapes/shapes.yml --classes shapes/classes.txt --backward"
SCALED = "--mean 128,128,128 --scale-factor 0.0078125 --backward"
GALLERY = (
    Shown(
        "rfcn",
        "R-FCN",
        "Position-sensitive score maps, and their votes for one roi.",
        f"shapes/rfcn/test.prototxt shapes/rfcn/shapes_rfcn.caffemodel {SCENE}",
    ),
    Shown(
        "faster_rcnn",
        "Faster R-CNN",
        "The bins of ROIPooling, and the way from a detection back to its anchor.",
        f"shapes/faster_rcnn/test.prototxt shapes/faster_rcnn/shapes_faster_rcnn.caffemodel {SCENE}",
    ),
    Shown(
        "deformable",
        "Deformable R-FCN",
        "Convolutions and rois whose samples move, with their learned offsets.",
        f"deformable/test.prototxt deformable/deformable_rfcn.caffemodel {SCENE}",
    ),
    Shown(
        "training",
        "A training step of R-FCN",
        "Targets of anchors and rois, hard examples, losses and gradients.",
        "shapes/rfcn/train.prototxt shapes/rfcn/shapes_rfcn.caffemodel --phase TRAIN --roidb shapes/scene.json"
        " --cfg shapes/shapes.yml --backward",
    ),
    Shown(
        "segments",
        "SegNet",
        "Pooling that keeps its mask, and the Upsample layers that read it.",
        f"segments/test.prototxt segments/segments.caffemodel --image segments/scene.png {SCALED}",
    ),
    Shown(
        "reader",
        "CRNN",
        "An LSTM along the columns of an image, forwards and backwards.",
        f"reader/test.prototxt reader/reader.caffemodel --image reader/string.png {SCALED}",
    ),
    Shown(
        "roi_pooling",
        "ROIPooling alone",
        "A head without its net: maps and rois in, pooled grids out.",
        "heads/roi_pool5.prototxt --random-weights --backward",
    ),
    Shown(
        "psroi_pooling",
        "PSROIPooling alone",
        "The head of an R-FCN with random score maps.",
        "heads/psroi.prototxt --random-weights --backward",
    ),
)

TEN_MINUTES = (
    "examples/shapes/rfcn/test.prototxt examples/shapes/rfcn/shapes_rfcn.caffemodel --image examples/shapes/scene.png"
    " --cfg examples/shapes/shapes.yml --classes examples/shapes/classes.txt --tour ten-minutes --tour rfcn"
)
"""The arguments of `minicaffe live` for this page. It shows them, so they hold in the root of a clone."""

PYODIDE_FILES = "pyodide*", "python_stdlib.zip", "numpy-*", "pillow-*"
"""What this page loads from a folder with Pyodide's files."""
