"""The three nets of MTCNN in a row (../shared/zoo/mtcnn): both faces of its own photograph are found, and nothing else.

    P-Net on a pyramid -> boxes -> R-Net on 24 x 24 crops -> O-Net on 48 x 48 crops; NMS and box regression after each

Source: Zhang et al., Joint Face Detection and Alignment (arXiv:1604.02878). The nets see width before height.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from recordings import SHARED, needs

from minicaffe import TEST, Net
from minicaffe.data.image_bytes import resized
from minicaffe.data.images import load_image
from minicaffe.layers.proposal.nms import nms

MTCNN = SHARED / "zoo" / "mtcnn"

Run = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def stage(name: str, regression: str) -> Run:
    """A net as a function: data (N, 3, W, H) to box regression and face probabilities."""
    net = Net(str(MTCNN / f"{name}.prototxt"), TEST, weights=str(MTCNN / f"{name}.caffemodel"))

    def run(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        net.blobs["data"].reshape(*data.shape)
        out = net.forward(data=data)
        return out[regression].copy(), out["prob1"][:, 1].copy()

    return run


def prepared(image: np.ndarray, height: int, width: int) -> np.ndarray:
    pixels = resized(np.ascontiguousarray(image), height, width).astype(np.float32)
    return ((pixels[:, :, ::-1] - 127.5) * 0.0078125).transpose(2, 1, 0)


def proposals(image: np.ndarray, pnet: Run, least: int = 40) -> np.ndarray:
    """P-Net's boxes (n, 9) over the pyramid: corners, score, regression. least: the smallest face in pixels."""
    boxes, scale = [], 12 / least
    height, width = image.shape[:2]
    while min(height, width) * scale >= 12:
        data = prepared(image, int(np.ceil(height * scale)), int(np.ceil(width * scale)))
        regression, prob = pnet(data[None])
        x, y = np.nonzero(prob[0] > 0.6)
        low = np.stack([x, y], axis=1) * 2
        corners = [np.floor((low + 1) / scale), np.floor((low + 12) / scale)]
        found = np.column_stack([*corners, prob[0, x, y], regression[0, :, x, y]])
        boxes.append(found[nms(found[:, :5], 0.5)])
        scale *= 0.709
    together = np.concatenate(boxes)
    return together[nms(together[:, :5], 0.7)]


def refined(image: np.ndarray, boxes: np.ndarray, net: Run, side: int, overlap: float) -> np.ndarray:
    """The boxes (n, 4) made square, seen by a net, kept where it sees a face, and moved: (m, 5) with scores."""
    half = (boxes[:, 2:] - boxes[:, :2] + 1).max(axis=1, keepdims=True) / 2
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    squares = np.concatenate([centre - half, centre + half], axis=1).round()
    regression, prob = net(np.array([crop(image, square, side) for square in squares.astype(int)]))
    kept = prob > 0.7
    found = np.column_stack([moved(squares[kept], regression[kept]), prob[kept]])
    return found[nms(found, overlap)]


def moved(boxes: np.ndarray, regression: np.ndarray) -> np.ndarray:
    return boxes + regression * np.tile(boxes[:, 2:] - boxes[:, :2] + 1, 2)


def crop(image: np.ndarray, box: np.ndarray, side: int) -> np.ndarray:
    """The pixels in box, black outside the image, at side x side."""
    x1, y1, x2, y2 = box
    left, top, right, bottom = max(x1, 0), max(y1, 0), min(x2 + 1, image.shape[1]), min(y2 + 1, image.shape[0])
    pixels = np.zeros((y2 - y1 + 1, x2 - x1 + 1, 3), np.uint8)
    pixels[top - y1 : bottom - y1, left - x1 : right - x1] = image[top:bottom, left:right]
    return prepared(pixels, side, side)


@pytest.mark.slow
@needs(MTCNN)
def test_the_cascade_finds_both_faces() -> None:
    image = load_image(MTCNN / "test1.jpg")
    found = proposals(image, stage("det1", "conv4-2"))
    found = refined(image, moved(found[:, :4], found[:, 5:]), stage("det2", "conv5-2"), 24, 0.7)
    found = refined(image, found[:, :4], stage("det3", "conv6-2"), 48, 0.5)
    found = found[np.argsort(found[:, 0])]
    np.testing.assert_allclose(found[:, :4], [[90, 19, 150, 101], [296, 87, 360, 169]], atol=2)
    assert (found[:, 4] > 0.99).all()
