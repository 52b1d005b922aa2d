"""The detection settings: the constants in the Python code of py-faster-rcnn and py-R-FCN, which no prototxt holds.

    settings = read_settings("faster_rcnn_end2end.yml")     # the originals' yml, over the originals' defaults
    net = minicaffe.Net("test.prototxt", minicaffe.TEST, settings=settings)
    settings.train.rpn_positive_overlap, settings.test.nms

Source: both projects' lib/fast_rcnn/config.py, bottom-up-attention's, PVANET's and MNC's. A field's name is its key there, in
lower case. TEST.ANCHORS, STAGE_THRESHOLDS, MIN_FACE and PYRAMID_FACTOR are minicaffe's: they are in the scripts of YOLO v2,
SqueezeDet and MTCNN. So are TRAIN.DISTORT, CHANNEL_ORDER, EXPAND and CROP, SSD's augmentation, and ANCHOR_BASE_SIZE,
ANCHOR_RATIOS and ANCHOR_SCALES, which are in generate_anchors.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from minicaffe.errors import Error, SettingsError, nearest
from minicaffe.formats.param_str import read_yaml_file

Four = tuple[float, float, float, float]


AUGMENTATION = {"distort": (0, 2), "channel_order": (0, 1), "expand": (1, 100), "crop": (0.01, 1)}
"""The settings of SSD's augmentation for RoIData, each with its smallest and largest value."""


@dataclass(frozen=True)
class TrainSettings:
    """The keys under TRAIN. Sizes are in pixels of the scaled image, overlaps are intersection over union."""

    scales: tuple[int, ...] = (600,)
    max_size: int = 1000
    scale_multiple_of: int = 1
    ims_per_batch: int = 2
    batch_size: int = 128
    fg_fraction: float = 0.25
    fg_thresh: float = 0.5
    bg_thresh_hi: float = 0.5
    bg_thresh_lo: float = 0.1
    use_flipped: bool = True
    bbox_reg: bool = True
    bbox_thresh: float = 0.5
    snapshot_iters: int = 10000
    snapshot_infix: str = ""
    use_prefetch: bool = False
    bbox_normalize_targets: bool = True
    bbox_inside_weights: Four = (1.0, 1.0, 1.0, 1.0)
    bbox_normalize_targets_precomputed: bool = False
    bbox_normalize_means: Four = (0.0, 0.0, 0.0, 0.0)
    bbox_normalize_stds: Four = (0.1, 0.1, 0.2, 0.2)
    rpn_normalize_targets: bool = False
    rpn_normalize_means: Four = (0.0, 0.0, 0.0, 0.0)
    rpn_normalize_stds: Four = (0.1, 0.1, 0.2, 0.2)
    proposal_method: str = "selective_search"
    aspect_grouping: bool = True
    has_rpn: bool = False
    rpn_positive_overlap: float = 0.7
    rpn_negative_overlap: float = 0.3
    rpn_clobber_positives: bool = False
    rpn_fg_fraction: float = 0.5
    rpn_batchsize: int = 256
    rpn_nms_thresh: float = 0.7
    rpn_pre_nms_top_n: int = 12000
    rpn_post_nms_top_n: int = 2000
    rpn_min_size: float = 16
    rpn_bbox_inside_weights: Four = (1.0, 1.0, 1.0, 1.0)
    rpn_positive_weight: float = -1.0
    agnostic: bool = False
    has_attributes: bool = False
    has_relations: bool = False
    distort: float = 0.0
    """The strength of random brightness, contrast, saturation and hue; SSD's is 1, 0 is off."""
    channel_order: float = 0.0
    """The probability of another order of the channels."""
    expand: float = 1.0
    """The largest canvas around an image, in sides of the image; SSD's is 4, 1 is off."""
    crop: float = 1.0
    """The smallest random crop, as a part of the image's side; SSD's is 0.3, 1 is off."""

    def __post_init__(self) -> None:
        positive = "scales", "max_size", "scale_multiple_of", "ims_per_batch", "bbox_normalize_stds", "rpn_normalize_stds"
        _check(self, "TRAIN.", *positive)
        if not (self.rpn_positive_weight < 0 or 0 < self.rpn_positive_weight < 1):
            raise SettingsError(
                f"TRAIN.RPN_POSITIVE_WEIGHT must be negative or between 0 and 1, got {self.rpn_positive_weight}"
            )
        if self.batch_size != -1 and self.batch_size <= 0:
            raise SettingsError(f"TRAIN.BATCH_SIZE must be > 0, or -1 for all rois, got {self.batch_size}")
        for name, (least, most) in AUGMENTATION.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise SettingsError(f"TRAIN.{name.upper()} must be from {least:g} to {most:g}, got {value:g}")

    @property
    def augmentation(self) -> dict[str, float]:
        """The parts of the augmentation that are on."""
        return {name: value for name in AUGMENTATION if (value := getattr(self, name)) != getattr(TrainSettings, name)}


@dataclass(frozen=True)
class TestSettings:
    """The keys under TEST."""

    __test__ = False  # pytest collects classes named Test...

    scales: tuple[int, ...] = (600,)
    max_size: int = 1000
    scale_multiple_of: int = 1
    nms: float = 0.3
    mask_merge_nms_thresh: float = 0.3
    mask_merge_iou_thresh: float = 0.5
    svm: bool = False
    bbox_reg: bool = True
    has_rpn: bool = False
    proposal_method: str = "selective_search"
    rpn_nms_thresh: float = 0.7
    rpn_pre_nms_top_n: int = 6000
    rpn_post_nms_top_n: int = 300
    rpn_min_size: float = 16
    agnostic: bool = False
    has_attributes: bool = False
    has_relations: bool = False
    soft_nms: int = 0
    anchors: tuple[float, ...] = ()
    """Width, height, width, height, ...: in cells for a YOLO v2, in pixels of the input for a SqueezeDet."""

    stage_thresholds: tuple[float, float] = (0.6, 0.7)
    """An MTCNN's lowest scores of its first two nets."""
    min_face: float = 20
    """The least side of a face that an MTCNN looks for, in pixels of the image."""
    pyramid_factor: float = 0.709
    """From one scale of an MTCNN's pyramid to the next."""

    def __post_init__(self) -> None:
        _check(self, "TEST.", "scales", "max_size", "scale_multiple_of", "anchors", "min_face")
        if not 0 < self.pyramid_factor < 1:
            raise SettingsError(f"TEST.PYRAMID_FACTOR must be between 0 and 1, got {self.pyramid_factor}")
        if len(self.anchors) % 2:
            raise SettingsError(f"TEST.ANCHORS must be pairs of a width and a height, got {len(self.anchors)} numbers")
        if self.soft_nms:
            raise SettingsError(f"TEST.SOFT_NMS must be 0, got {self.soft_nms}: soft NMS is not supported")


@dataclass(frozen=True)
class DetectionSettings:
    """All settings. pixel_means: blue, green, red. The keys of paths and devices have no effect.

    Raises SettingsError for numbers out of range, NaN and infinities.
    """

    train: TrainSettings = field(default_factory=TrainSettings)
    test: TestSettings = field(default_factory=TestSettings)
    pixel_means: tuple[float, float, float] = (102.9801, 115.9465, 122.7717)
    rng_seed: int = 3
    dedup_boxes: float = 1 / 16
    eps: float = 1e-14
    binarize_thresh: float = 0.4
    mask_size: int = 21
    exp_dir: str = "default"
    root_dir: str = ""
    data_dir: str = ""
    models_dir: str = ""
    matlab: str = "matlab"
    use_gpu_nms: bool = True
    gpu_id: int = 0
    anchor_base_size: int = 16
    anchor_ratios: tuple[float, ...] = ()
    anchor_scales: tuple[float, ...] = ()
    """The anchors of Python layers whose param_str has none. Scales that do not fit the net are replaced by 8, 16 and 32."""

    def __post_init__(self) -> None:
        _check(self, "", "anchor_base_size", "anchor_ratios", "anchor_scales")


def _check(settings: Any, group: str, *positive: str) -> None:
    """Raise SettingsError for numbers that are not finite, and for settings named in `positive` that are not > 0."""
    for name, value in vars(settings).items():
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(math.isfinite(number) for number in numbers if isinstance(number, float | np.floating)):
            raise SettingsError(f"{group}{name.upper()} must be finite, got {value}")
        if name in positive and not all(number > 0 for number in numbers):
            raise SettingsError(f"{group}{name.upper()} must be > 0, got {value}")


_current = DetectionSettings()


def current() -> DetectionSettings:
    """Return the settings of nets that are given none: those of the last use(), at first the defaults."""
    return _current


def use(settings: DetectionSettings) -> None:
    """Make settings the current ones, in all threads, for nets made from now on.

    This is for old scripts: give a net its settings.
    """
    global _current
    _current = settings_or_current(settings)


def settings_or_current(settings: DetectionSettings | None) -> DetectionSettings:
    """Return settings, or the current ones in place of None. Raises SettingsError for another type."""
    if settings is not None and not isinstance(settings, DetectionSettings):
        raise SettingsError(
            f"settings must be DetectionSettings, got {settings!r}: make them with minicaffe.settings.read_settings"
        )
    return settings or _current


def settings_from(given: str | PathLike[str] | Mapping[str, Any] | DetectionSettings) -> DetectionSettings:
    """Return the settings of a yml file, or of a mapping of a yml's keys ({"TEST": {"NMS": 0.4}}), over the defaults.

    DetectionSettings are returned unchanged.

    Raises SettingsError.
    """
    if isinstance(given, str | PathLike):
        return read_settings(given)
    return _merged(DetectionSettings(), given, "") if isinstance(given, Mapping) else settings_or_current(given)


def read_settings(path: str | PathLike[str], base: DetectionSettings | None = None) -> DetectionSettings:
    """Return the settings of a yml file over base (default: the defaults).

    Raises SettingsError, which names the file and key.
    """
    values = read_yaml_file(path, SettingsError)
    try:
        return _merged(base or DetectionSettings(), {} if values is None else values, "")
    except Error as error:
        raise SettingsError(f"{path}: {error}") from error


def with_anchors(settings: DetectionSettings, numbers: Mapping[str, Sequence[float]]) -> DetectionSettings:
    """Return settings with the numbers of a generate_anchors.py, by name: base_size, ratios and scales."""
    (size, *_) = numbers.get("base_size", [settings.anchor_base_size])
    ratios, scales = numbers.get("ratios", settings.anchor_ratios), numbers.get("scales", settings.anchor_scales)
    return dataclasses.replace(settings, anchor_base_size=int(size), anchor_ratios=tuple(ratios), anchor_scales=tuple(scales))


def changed(settings: DetectionSettings) -> list[str]:
    """Return the keys whose values differ from the defaults: TEST.NMS, PIXEL_MEANS."""
    default, keys = DetectionSettings(), []
    for prefix, group, of in (
        ("", settings, default),
        ("TRAIN.", settings.train, default.train),
        ("TEST.", settings.test, default.test),
    ):
        names = [name for name in vars(of) if name not in ("train", "test")]
        keys += [prefix + name.upper() for name in names if getattr(group, name) != getattr(of, name)]
    return keys


def changed_values(settings: DetectionSettings, unused: str) -> dict[str, Any]:
    """Return the settings that differ from the defaults: {"TRAIN.BG_THRESH_LO": 0.0}. unused: the group without effect."""
    groups: dict[str, DetectionSettings | TrainSettings | TestSettings] = {"": settings}
    groups |= {"TRAIN": settings.train, "TEST": settings.test}
    keys = [key.rpartition(".") for key in changed(settings) if key != "TRAIN.SNAPSHOT_ITERS"]
    return {f"{group}{dot}{name}": getattr(groups[group], name.lower()) for group, dot, name in keys if group != unused}


T = TypeVar("T", DetectionSettings, TrainSettings, TestSettings)


def _merged(settings: T, values: Any, prefix: str) -> T:
    """Return settings with the values of a yml's mapping over them. prefix: the keys' prefix in errors."""
    if not isinstance(values, Mapping):
        raise SettingsError(f"{prefix.rstrip('.') or 'the file'} must be a mapping of settings, got {values!r}")
    kinds = get_type_hints(type(settings))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).lower()
        if name not in kinds or str(key) != name.upper():  # keys are case-sensitive in the originals
            near = nearest(f"{prefix}{key}".upper(), [prefix + kind.upper() for kind in kinds], least=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingsError(f"unknown setting {prefix}{key}{hint}")
        old = getattr(settings, name)
        nested = dataclasses.is_dataclass(kinds[name])
        changes[name] = _merged(old, value, f"{key}.") if nested else _checked(value, kinds[name], f"{prefix}{key}")
    return dataclasses.replace(settings, **changes)


def _checked(value: Any, kind: Any, key: str) -> Any:
    """Return value as kind. An int also serves as a float, a list (of lists) as a tuple."""
    if get_origin(kind) is tuple:
        items, wanted = _flat(value), get_args(kind)  # the originals nest PIXEL_MEANS in three lists
        length = None if Ellipsis in wanted else len(wanted)
        if not isinstance(value, list | tuple) or not items or length not in (None, len(items)):
            raise SettingsError(f"{key} must be a list of {length or 'one or more'} numbers, got {value!r}")
        return tuple(_checked(item, wanted[0], key) for item in items)
    fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not fits or (isinstance(value, bool) and kind is not bool):  # bool is an int in Python
        names = {float: "a number", int: "a whole number", bool: "True or False", str: "a string"}
        raise SettingsError(f"{key} must be {names[kind]}, got {value!r}")
    return float(value) if kind is float else value


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, list | tuple) else [value]
