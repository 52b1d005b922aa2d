"""MTCNN: three nets in a row, P-Net, R-Net and O-Net, find faces. They are joined to one Net.

    P-Net on a pyramid of the image    score >= 0.6; NMS 0.5 at each scale, 0.7 of all; boxes moved, made square
    R-Net on 24 x 24 pixels of each    score > 0.7; NMS 0.7; moved, made square
    O-Net on 48 x 48 pixels of each    score > threshold; moved; NMS 0.7, overlaps as parts of the smaller box

    det1.prototxt, det2.prototxt, det3.prototxt -> a net with the layers and blobs pnet/..., rnet/... and onet/...

TEST.STAGE_THRESHOLDS, TEST.MIN_FACE and TEST.PYRAMID_FACTOR change the first two scores and the pyramid. The nets take red,
green, blue, and columns before rows. As in MATLAB the first pixel is 1 until the faces are returned; pixels outside the image
are black.

Source: Zhang et al., Joint Face Detection and Alignment (arXiv:1604.02878); MTCNNv1/detect_face.m of
kpzhang93/MTCNN_face_detection_alignment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.boxes import clip_boxes
from minicaffe.data.image_bytes import check_size
from minicaffe.data.images import area_means, area_sums, resize_area
from minicaffe.errors import Error
from minicaffe.files import granted
from minicaffe.formats.prototxt import NetFile, read_net
from minicaffe.formats.weights import WeightsFile, read_weights
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.proposal.nms import Measure, nms, nms_by
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2

from .class_names import BACKGROUND
from .detect import Detections
from .family import Classes, Family, FindOptions, FixedSize, numbers_text
from .inputs import check_scores, put_array
from .rows import maker

NETS = ("pnet", "rnet", "onet")
"""The names of the joined nets."""
STRIDE, CELL = 2, 12
"""Pixels from one box of P-Net to the next, and of a box."""
BATCH = 256
"""Boxes in a pass of R-Net or O-Net."""
SMALLER = Measure(divisor="IOMU")
TYPICAL = (600, 1000)
"""The height and width of an image by which the memory is estimated."""


class MtcnnSize(FixedSize):
    """The rules of an MTCNN's script."""

    kind = "an MTCNN"
    maker = "script"
    settings = ("TEST.MIN_FACE", "TEST.PYRAMID_FACTOR", "TEST.STAGE_THRESHOLDS")


class Mtcnn(Family):
    """MTCNNs, which find faces: joined nets."""

    names = ("MTCNN",)
    has_fixed_size = True
    means = (127.5, 127.5, 127.5)
    scale_factor = 0.0078125
    takes_rgb = True
    threshold = 0.7

    def matches(self, net: Net) -> bool:
        if number := stage_of(net.param):
            which = ("first", "second", "third")[number - 1]
            raise Error(
                f"{net.file}: this is the {which} of MTCNN's three nets, which find faces only together. Give minicaffe detect "
                "or minicaffe.detection.Detector the path of the first, with the others in the same folder (det1, det2, det3)"
            )
        return [name.partition("/")[0] for name in net.inputs] == list(NETS)

    def classes(self, net: Net) -> Classes:
        return Classes(2, Stage(net, "onet").scores, [BACKGROUND, "face"])

    def fixed_size(self, net: Net) -> FixedSize:
        return MtcnnSize()

    def find(self, net: Net, image: NDArray[np.uint8], options: FindOptions) -> Detections:
        test = (options.settings or net.settings).test
        stages = [Stage(net, name, *self.means_and_factor(options)) for name in NETS]
        boxes = proposals(image, stages[0], test.min_face, test.pyramid_factor, test.stage_thresholds[0])
        boxes, scores, moves = stages[1].look(image, squares(boxes), test.stage_thresholds[1])
        kept = nms(np.column_stack([boxes, scores]), 0.7)
        boxes, scores, moves = stages[2].look(image, squares(moved(boxes[kept], moves[kept], 1)), -1)
        best, sure = float(scores.max(initial=0)), scores > options.threshold
        boxes, scores = moved(boxes[sure], moves[sure], 1), scores[sure]
        kept = nms_by(SMALLER, np.column_stack([boxes, scores]), 0.7)[: options.max_detections]
        faces = clip_boxes(boxes[kept] - 1, image.shape[:2]).astype(np.float32)
        return Detections(faces, scores[kept].astype(np.float32), np.ones(len(kept), np.int64), best=best)

    def check_proposals(self, net: Net, given: bool) -> None:
        if given:
            raise Error(f"{net.file}: {MtcnnSize.kind} takes no proposals")

    def reshape_to_largest(self, net: Net) -> None:
        """Give P-Net's input the size of a typical image, scaled for the smallest face."""
        scale = CELL / net.settings.test.min_face
        net.blobs[net.inputs[0]].reshape(1, 3, *(max(round(side * scale), CELL) for side in reversed(TYPICAL)))

    def preparation(self, net: Net, options: FindOptions) -> list[str]:
        (means, factor), test = self.means_and_factor(options), (options.settings or net.settings).test
        pyramid = f"faces >= {test.min_face:g} pixels, pyramid factor {test.pyramid_factor:g}"
        thresholds = f"first thresholds {numbers_text(test.stage_thresholds)}"
        return [f"means {numbers_text(means)}", f"factor {factor:g}", pyramid, thresholds]


class Stage:
    """One of the joined nets. means: blue first."""

    def __init__(self, net: Net, name: str, means: Sequence[float] = (0, 0, 0), factor: float = 1.0) -> None:
        layers = [layer.name for layer in net.layers if layer.name.startswith(f"{name}/")]
        tops = [top for top in net.outputs if top.startswith(f"{name}/")]
        self.net, self.first, self.last = net, layers[0], layers[-1]
        self.input = next(top for top in net.inputs if top.startswith(f"{name}/"))
        self.scores = next(top for top in tops if isinstance(maker(net, top), Softmax))
        self.moves = next(top for top in tops if top != self.scores and net.blobs[top].shape[1] == 4)
        self.means, self.factor = np.array(means, np.float32), np.float32(factor)

    def run(self, images: Array) -> tuple[Array, Array]:
        """Return the scores (N, ...) and moves (N, 4, ...) of images (N, H, W, 3), blue, green, red."""
        pixels = (images - self.means) * self.factor
        put_array(self.net, self.input, pixels[..., ::-1].transpose(0, 3, 2, 1))
        self.net.forward(start=self.first, end=self.last, blobs=[self.scores, self.moves])
        scores, moves = (self.net.blobs[name].read_data() for name in (self.scores, self.moves))
        check_scores(scores, self.scores)
        check_scores(moves, self.moves, "boxes")
        return scores[:, 1].astype(np.float64), moves.astype(np.float64)  # copies: the next pass overwrites the blobs

    def look(self, image: NDArray[np.uint8], boxes: Array, threshold: float) -> tuple[Array, Array, Array]:
        """Return the boxes (n, 4) whose pixels have a score > threshold, with their scores (n,) and moves (n, 4)."""
        boxes = boxes[(boxes[:, 2:] >= boxes[:, :2]).all(axis=1)]
        if not len(boxes):
            return boxes, np.zeros(0), np.zeros((0, 4))
        size = self.net.blobs[self.input].shape[:1:-1]
        passes = []
        for start in range(0, len(boxes), BATCH):
            batch = boxes[start : start + BATCH].astype(np.int64)
            passes.append(self.run(np.stack([resize_area(crop(image, box), *size) for box in batch])))
        scores, moves = (np.concatenate(arrays) for arrays in zip(*passes, strict=True))
        sure = scores > threshold
        return boxes[sure], scores[sure], moves[sure]


def proposals(image: NDArray[np.uint8], pnet: Stage, face: float, factor: float, threshold: float) -> Array:
    """Return P-Net's boxes (n, 4), moved. face: the least side of a face in pixels. factor: from one scale to the next."""
    height, width = image.shape[:2]
    found, sums = [np.zeros((0, 9))], area_sums(image)
    for scale in scales(height, width, face, factor):
        size = int(np.ceil(height * scale)), int(np.ceil(width * scale))
        scores, moves = pnet.run((area_means(sums, *size) if scale <= 1 else resize_area(image, *size))[None])
        x, y = np.nonzero(scores[0] >= threshold)
        corner = np.stack([x, y], axis=1) * STRIDE
        ends = [np.trunc((corner + 1) / scale), np.trunc((corner + CELL) / scale)]
        of_scale = np.column_stack([*ends, scores[0, x, y], moves[0, :, x, y]])
        found.append(of_scale[nms(of_scale[:, :5], 0.5)])
    rows = np.concatenate(found)
    rows = rows[nms(rows[:, :5], 0.7)]
    return moved(rows[:, :4], rows[:, 5:], 0)


def scales(height: int, width: int, face: float, factor: float) -> Iterator[float]:
    """Yield the scales of a pyramid, while the short side is not less than a box of P-Net."""
    scale = CELL / face
    short = min(height, width) * scale
    while short >= CELL:
        yield scale
        scale, short = scale * factor, short * factor


def moved(boxes: Array, moves: Array, unit: int) -> Array:
    """Return boxes (n, 4) moved by moves (n, 4), in parts of their sides. unit: 1 if a box's ends are pixels in it, else 0."""
    result: Array = boxes + moves * np.tile(boxes[:, 2:] - boxes[:, :2] + unit, 2)
    return result


def squares(boxes: Array) -> Array:
    """Return squares around the middles of boxes (n, 4), of their longer sides, with whole corners."""
    sides = boxes[:, 2:] - boxes[:, :2]
    longer = sides.max(axis=1, keepdims=True)
    low = boxes[:, :2] + sides / 2 - longer / 2
    result: Array = np.trunc(np.concatenate([low, low + longer], axis=1))
    return result


def crop(image: NDArray[np.uint8], box: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the pixels in a box, black outside the image. box: x1, y1, x2, y2, in it, where the first pixel is 1."""
    (left, top), (right, bottom) = box[:2] - 1, box[2:]
    check_size("the pixels of a box", bottom - top, right - left)
    inside = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    pixels = np.zeros((bottom - top, right - left, 3), np.uint8)
    pixels[max(-top, 0) :, max(-left, 0) :][: inside.shape[0], : inside.shape[1]] = inside
    return pixels


def stage_of(param: caffe_pb2.NetParameter) -> int:
    """Return 1, 2 or 3 for MTCNN's first, second or third net, by its ends; 0 for another net."""
    made: dict[str, caffe_pb2.LayerParameter] = {}
    unread: dict[str, caffe_pb2.LayerParameter] = {}
    for layer in param.layer:
        for name in layer.bottom:
            unread.pop(name, None)
        made |= dict.fromkeys(layer.top, layer)
        unread |= dict.fromkeys(layer.top, layer)
    scores = [made.get(layer.bottom[0]) for layer in unread.values() if layer.type == "Softmax" and layer.bottom]
    others = [layer for layer in unread.values() if layer.type != "Softmax"]
    inputs = [layer for layer in param.layer if not layer.bottom]
    if len(scores) != 1 or scores[0] is None or len(inputs) != 1 or _outputs(scores[0]) != 2:
        return 0
    counts, types = sorted(map(_outputs, others)), {layer.type for layer in (scores[0], *others)}
    stages = {("Convolution", (4,)): 1, ("InnerProduct", (4,)): 2, ("InnerProduct", (4, 10)): 3}
    return stages.get((types.pop(), tuple(counts)), 0) if len(types) == 1 else 0


def _outputs(layer: caffe_pb2.LayerParameter) -> int:
    param = layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param
    return int(param.num_output)


_PLACES = re.compile(r"1|p(?=[-_]?net)", re.IGNORECASE)
_NEXT = {"1": "23", "p": "ro", "P": "RO"}


def following(path: str | os.PathLike[str]) -> list[str]:
    """Return the paths of the second and third net's files, beside the first one's.

    They are det2 and det3 of det1, rnet and onet of pnet.
    Raises Error for files that are not there, and DataError for links that lead elsewhere.
    """
    folder, name = os.path.split(os.fspath(path))
    names = [[name[: at.start()] + c + name[at.end() :] for c in _NEXT[at[0]]] for at in _PLACES.finditer(name)]
    for pair in names:
        paths = [os.path.join(folder, one) for one in pair]
        if all(map(os.path.isfile, paths)):
            home = os.path.dirname(os.path.realpath(path))
            return [granted(one, folder or os.curdir, home, namer="a link") for one in paths]
    wanted = " and ".join(names[0] if names else ["det2", "det3"])
    rename = "" if names else ": name its files alike, as det1, det2 and det3"
    raise Error(f"{path} looks like MTCNN's first net, so {wanted} must be in the same folder{rename}")


def joined(file: NetFile) -> NetFile:
    """Return MTCNN's three nets as one; any other net as it is. Raises Error for missing files and for other nets in them."""
    if stage_of(file.param) != 1:
        return file
    files = [file, *(read_net(path, warn=False) for path in following(file.file))]
    for number, one in enumerate(files[1:], 2):
        if stage_of(one.param) not in (2, 3):
            raise Error(f"{one.file}: not net {number} of an MTCNN, whose first net is {file.file}")
    whole = caffe_pb2.NetParameter(name=file.param.name)
    for prefix, one in zip(NETS, files, strict=True):
        for layer in one.param.layer:
            added = whole.layer.add()
            added.CopyFrom(layer)
            added.name = f"{prefix}/{layer.name}"
            for names in (added.bottom, added.top):
                names[:] = [f"{prefix}/{name}" for name in names]
    sources, skipped = [source for one in files for source in one.sources], [field for one in files for field in one.skipped]
    return replace(file, param=whole, sources=sources, skipped=tuple(skipped))


def joined_weights(path: str | os.PathLike[str]) -> WeightsFile:
    """Return the weights of MTCNN's three nets for the joined net. path: of the first one's. Raises Error and WeightsError."""
    files = [read_weights(one) for one in (path, *following(path))]
    named = ((prefix, layer) for prefix, one in zip(NETS, files, strict=True) for layer in one.layers)
    layers = [replace(layer, name=f"{prefix}/{layer.name}") for prefix, layer in named]
    others = " and ".join(os.path.basename(one.path) for one in files[1:])
    return WeightsFile(f"{files[0].path} (with {others})", layers)
