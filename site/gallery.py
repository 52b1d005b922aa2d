"""The pages of the gallery."""

from __future__ import annotations

from typing import NamedTuple


class Shown(NamedTuple):
    """A page of `minicaffe trace`, of a net in examples/.

    words: the command's arguments. tour: the guided tour at which the page opens.
    """

    name: str
    title: str
    text: str
    words: str
    tour: str = ""

    @property
    def address(self) -> str:
        return f"traces/{self.name}.html" + f"#tour={self.tour}" * bool(self.tour)

    @property
    def command(self) -> list[str]:
        return ["trace", *self.words.split(), *(["--tour", self.tour] if self.tour else [])]


SCENE = "--image shapes/scene.png --cfg shapes/shapes.yml --classes shapes/classes.txt --backward"
SCALED = "--mean 128,128,128 --scale-factor 0.0078125 --backward"
GALLERY = (
    Shown(
        "rfcn",
        "R-FCN",
        "A guided tour: from the photo through anchors, proposals and votes to a detection.",
        f"shapes/rfcn/test.prototxt shapes/rfcn/shapes_rfcn.caffemodel {SCENE}",
        "rfcn",
    ),
    Shown(
        "faster_rcnn",
        "Faster R-CNN",
        "A guided tour: two boxes that ROIPooling cannot distinguish.",
        f"shapes/faster_rcnn/test.prototxt shapes/faster_rcnn/shapes_faster_rcnn.caffemodel {SCENE}",
        "roi-pooling",
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
        "A guided tour: the labels of anchors and rois on the image, the four losses, and their gradients.",
        "shapes/rfcn/train.prototxt --phase TRAIN --roidb shapes/scene.json --cfg shapes/shapes.yml --backward",
        "learning",
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
