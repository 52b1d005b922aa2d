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
    """A net of phase TEST that finds objects in images.

    Call it on an image: it returns `Detections`.
    The net's settings (net.settings) define an image's scale, its means and the NMS.

    Parameters
    ----------
    net : Net
        The net.
    classes : sequence of str, optional
        Names by class index, the background first.
        Default: VOC's for 21 classes and COCO's for 81. For a CTPN "text"; for an SSH, an UltraFace and an MTCNN "face".
        Otherwise None.
    threshold : float, optional
        The least score, from 0 to 1. Default: 0.5; for an UltraFace and an MTCNN 0.7.
    max_detections : int, default 100
        The most objects of an image.
    means : sequence of float, optional
        The means to subtract, if `is_ssd`: blue, green, red.
        Default: 104, 117, 123; for a DetectNet 0, for an UltraFace 127, for an MTCNN 127.5.
    scale_factor : float, optional
        The factor for the pixels after subtraction, if `is_ssd`. Default: 1; for an UltraFace and an MTCNN 1/128.

    Attributes
    ----------
    net : Net
        The net.
    family : Family
        The kind of detector, which defines how objects are found.
    classes : sequence of str or None
        Names by class index.
    threshold : float
        The least score.
    max_detections : int
        The most objects of an image.
    means : sequence of float
        The means to subtract, if `is_ssd`: blue, green, red.
    scale_factor : float
        The factor for the pixels after subtraction, if `is_ssd`.

    Raises
    ------
    Error
        The net is no detector, or an argument does not fit it.
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
        """True for an SSD, RefineDet, YOLO, MS-CNN, SqueezeDet, DetectNet, UltraFace or MTCNN."""
        return self.family.has_fixed_size

    def __call__(self, image: Path | Image.Image | NDArray[np.uint8], *, proposals: ArrayLike | None = None) -> Detections:
        """Return the objects in an image.

        Parameters
        ----------
        image : str or path or PIL.Image.Image or ndarray
            A file, a Pillow image, or a uint8 array (H, W, 3) in the order blue, green, red.
        proposals : array_like, optional
            Boxes (R, 4) as x1, y1, x2, y2 in pixels of the image, for a net that takes rois (Fast R-CNN).

        Returns
        -------
        Detections
            The objects, best score first.

        Raises
        ------
        DataError
            `image` is no image.
        Error
            Proposals are missing or unexpected.
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
    """Return the detector of a test prototxt, or of a Net.

    Layers that the weights lack produce a warning.

    Parameters
    ----------
    net : str or path or Net
        The test prototxt, or a Net. For an MTCNN give det1.
        det2 and det3 are found next to it, and a Net of all three is made.
    weights : str or path, optional
        A weights file of any format.
    cfg : str or path or mapping or DetectionSettings, optional
        The settings that the net was trained with, only for a prototxt: a Net has its settings.
        A yml file of py-faster-rcnn, a dict of its keys such as ``{"TEST": {"NMS": 0.4}}``, or DetectionSettings.
        Without it, images of an SSH's prototxt are scaled as by SSH's settings.
    classes : str or path or sequence of str, optional
        The names in the net's order, the background first; or a file with one name a line. Default: as for `Detector`.
    threshold : float, optional
        The least score, from 0 to 1. Default: as for `Detector`.
    max_detections : int, default 100
        The most objects of an image.
    means : sequence of float, optional
        The means to subtract: blue, green, red. As for `Detector`.
    scale_factor : float, optional
        The factor for the pixels after subtraction. As for `Detector`.
    strict : bool, optional
        As for `Net`, for a prototxt.
    fork : str, optional
        As for `Net`, for a prototxt.

    Returns
    -------
    Detector
        The detector, with its weights.

    Raises
    ------
    Error
        The net is no detector, or an argument does not fit it.
    PrototxtError
        The prototxt cannot be read.
    WeightsError
        The weights cannot be read, or do not fit the net.
    SettingsError
        A setting of `cfg` is unknown or has a wrong value.

    Notes
    -----
    Some nets take few settings or none:

    - SSD: none.
    - MS-CNN: TRAIN.BBOX_NORMALIZE_TARGETS, TRAIN.BBOX_NORMALIZE_MEANS and TRAIN.BBOX_NORMALIZE_STDS.
    - SqueezeDet, and YOLO v2 without its last layer: TEST.ANCHORS.
    - MTCNN: TEST.MIN_FACE, TEST.PYRAMID_FACTOR and TEST.STAGE_THRESHOLDS.
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
