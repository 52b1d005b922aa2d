"""Detector: a net that is called on images. Its family defines how objects are found (families.py).

detector = minicaffe.detection.load("test.prototxt", "net.caffemodel", cfg="faster_rcnn_end2end.yml")
found = detector("photo.jpg")
found.boxes, found.scores, [detector.classes[k] for k in found.classes]
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from minicaffe.data.image_bytes import pixels_of
from minicaffe.data.images import load_image
from minicaffe.data.settings import DetectionSettings, settings_from
from minicaffe.errors import DataError, Error, shortened
from minicaffe.formats.prototxt import read_net
from minicaffe.formats.weights import WeightsFile, no_name_fits, read_weights
from minicaffe.mode import TEST
from minicaffe.net import Net

from .class_names import read_names
from .detect import Detections
from .families import FAMILY_NAMES, family_of
from .family import FindOptions
from .mtcnn import Mtcnn, joined, joined_weights

Path = str | PathLike[str]


class Detector:
    """A net of phase TEST that finds objects. A call on an image returns Detections.

    The net's settings (net.settings) define an image's scale, its means and the NMS. For an SSD, RefineDet, YOLO, MS-CNN,
    SqueezeDet, UltraFace or MTCNN (is_ssd) means (blue, green, red; default 104, 117, 123, an UltraFace's 127, an MTCNN's
    127.5) are subtracted, and scale_factor multiplies the rest (default 1, of these two 1/128). classes: names by class index,
    the background first (default: VOC's for 21 classes, COCO's for 81, text for a CTPN's, face for an SSH's, an UltraFace's and
    an MTCNN's, else None). threshold: the least score, from 0 to 1 (default 0.5, an UltraFace's and an MTCNN's 0.7).
    max_detections: the most for an image.
    Raises Error for a net that is no detector.
    """

    def __init__(
        self,
        net: Net,
        *,
        classes: Sequence[str] | None = None,
        threshold: float | None = None,
        max_detections: int = 100,
        means: Sequence[float] | None = None,
        scale_factor: float | None = None,
    ) -> None:
        self.family = family_of(net)
        if not self.family.has_fixed_size:
            for name, value in {"means": means, "scale_factor": scale_factor}.items():
                if value is not None:
                    raise Error(f"{net.file}: {name} has no effect: only {FAMILY_NAMES} take it")
        self.threshold = self.family.threshold if threshold is None else threshold
        if not 0 <= self.threshold <= 1:
            raise Error(f"threshold must be from 0 to 1, got {threshold}")
        if max_detections < 1:
            raise Error(f"max_detections must be > 0, got {max_detections}")
        self.net, self.max_detections = net, max_detections
        self.classes = classes or self.family.classes(net).names
        given = FindOptions(means=means, scale_factor=scale_factor)
        self.means, self.scale_factor = self.family.means_and_factor(given)

    @property
    def is_ssd(self) -> bool:
        """True for an SSD, RefineDet, YOLO, MS-CNN, SqueezeDet, UltraFace or MTCNN."""
        return self.family.has_fixed_size

    def __call__(self, image: Path | Image.Image | NDArray[np.uint8], *, proposals: ArrayLike | None = None) -> Detections:
        """Return the objects in an image: a file, a Pillow image, or an array (H, W, 3) in the order blue, green, red.

        proposals: boxes (R, 4) as x1, y1, x2, y2 in pixels of the image, for a net that takes rois (Fast R-CNN).
        Raises DataError for what is no image, Error for missing or unexpected proposals.
        """
        self.family.check_proposals(self.net, proposals is not None)
        options = FindOptions(self.threshold, self.max_detections, proposals, means=self.means, scale_factor=self.scale_factor)
        return self.family.find(self.net, _pixels(image), options)


def load(  # noqa: PLR0913 - public, by keyword
    net: Path | Net,
    weights: Path | None = None,
    cfg: Path | Mapping[str, Any] | DetectionSettings | None = None,
    classes: Path | Sequence[str] | None = None,
    *,
    threshold: float | None = None,
    max_detections: int = 100,
    means: Sequence[float] | None = None,
    scale_factor: float | None = None,
    strict: bool | None = None,
    fork: str = "",
) -> Detector:
    """Return the detector of a test prototxt, or of a Net, with the weights in a file of any format.

    Of an MTCNN give det1; det2 and det3 are found beside it, and a Net of them all is made.
    cfg: the settings that the net was trained with: a yml of py-faster-rcnn, a dict of its keys ({"TEST": {"NMS": 0.4}}), or
    DetectionSettings. Only for a prototxt: a Net has its settings. An SSD net takes none; an MS-CNN takes
    TRAIN.BBOX_NORMALIZE_TARGETS, _MEANS and _STDS, a SqueezeDet and a YOLO v2 without its last layer TEST.ANCHORS, an
    MTCNN TEST.MIN_FACE, TEST.PYRAMID_FACTOR and TEST.STAGE_THRESHOLDS. Without
    cfg the images of an SSH's prototxt are scaled as by SSH's settings.
    classes: the names in the net's order, the background first; or a file, one name a line. strict, fork: as Net's, for a
    prototxt. The rest: see Detector.
    Layers that the weights lack produce a warning. Raises Error, PrototxtError, WeightsError, SettingsError.
    """
    own = None if cfg is None else settings_from(cfg)
    if not isinstance(net, Net):  # nobody else uses this net, so its other blobs need not be kept
        net = Net(joined(read_net(net, warn=False)), TEST, keep="outputs", settings=own, strict=strict, fork=fork)
        if own is None and net.settings == DetectionSettings() and (defaults := family_of(net).test_defaults):
            net.settings = dataclasses.replace(net.settings, test=dataclasses.replace(net.settings.test, **defaults))
    elif cfg is not None:
        raise Error(f"{net.file}: a Net already has settings: build it with Net(settings=...), or pass the prototxt's path")
    elif fork:
        raise Error(f"{net.file}: a Net already has a fork: build it with Net(fork=...), or pass the prototxt's path")
    if own is not None and (rules := family_of(net).fixed_size(net)):
        rules.check_settings(own, net.file)
    names = read_names(classes) if isinstance(classes, str | PathLike) else classes
    detector = Detector(
        net, classes=names, threshold=threshold, max_detections=max_detections, means=means, scale_factor=scale_factor
    )
    count, holder, _ = detector.family.classes(net)
    if names and len(names) != count:
        given = classes if isinstance(classes, str | PathLike) else "classes"
        raise Error(f"{given}: {len(names)} classes with the background, but {holder} of {net.file} has {count}")
    if weights is not None:
        _copy_weights(net, joined_weights(weights) if isinstance(detector.family, Mtcnn) else read_weights(weights))
    return detector


def _pixels(image: object) -> NDArray[np.uint8]:
    if isinstance(image, str | PathLike):
        return load_image(image)
    if isinstance(image, Image.Image):
        return pixels_of(image)
    if isinstance(image, np.ndarray):
        return image
    raise DataError(f"an image must be a path, a PIL image or an array (height, width, 3), got {type(image).__name__}")


def _copy_weights(net: Net, weights: WeightsFile) -> None:
    report = net.copy_from(weights)
    if net.params and not report.loaded:
        raise no_name_fits(weights.path, net.file)
    if report.missing:
        of_all = f"{len(report.missing)} of {len(net.params)} layers of {net.file}"
        warnings.warn(shortened(f"{weights.path} has no weights for {of_all}: {', '.join(report.missing)}"), stacklevel=3)
