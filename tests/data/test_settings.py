from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from detection_case import CFGS
from recordings import SHARED, needs

from minicaffe.data.settings import DetectionSettings, TestSettings, TrainSettings, current, read_settings, use
from minicaffe.errors import SettingsError

needs_models = needs(CFGS)


def written(path: Path, text: str) -> Path:
    (path / "some.yml").write_text(text, encoding="utf-8")
    return path / "some.yml"


def test_defaults() -> None:
    """The originals' config.py, number by number."""
    s = DetectionSettings()
    assert (s.train.scales, s.train.max_size, s.train.ims_per_batch, s.train.batch_size) == ((600,), 1000, 2, 128)
    assert (s.train.fg_fraction, s.train.fg_thresh, s.train.bg_thresh_hi, s.train.bg_thresh_lo) == (0.25, 0.5, 0.5, 0.1)
    assert (s.train.use_flipped, s.train.bbox_reg, s.train.bbox_thresh) == (True, True, 0.5)
    assert (s.train.bbox_normalize_targets, s.train.bbox_normalize_targets_precomputed) == (True, False)
    assert (s.train.bbox_normalize_means, s.train.bbox_normalize_stds) == ((0, 0, 0, 0), (0.1, 0.1, 0.2, 0.2))
    assert (s.train.bbox_inside_weights, s.train.rpn_bbox_inside_weights) == ((1, 1, 1, 1), (1, 1, 1, 1))
    assert (s.train.rpn_normalize_targets, s.train.rpn_normalize_means) == (False, (0, 0, 0, 0))
    assert s.train.rpn_normalize_stds == (0.1, 0.1, 0.2, 0.2)
    assert (s.train.rpn_positive_overlap, s.train.rpn_negative_overlap, s.train.rpn_clobber_positives) == (0.7, 0.3, False)
    assert (s.train.rpn_fg_fraction, s.train.rpn_batchsize, s.train.rpn_positive_weight) == (0.5, 256, -1)
    assert (s.train.rpn_nms_thresh, s.train.rpn_min_size) == (0.7, 16)
    assert (s.train.rpn_pre_nms_top_n, s.train.rpn_post_nms_top_n) == (12000, 2000)
    assert (s.train.agnostic, s.train.aspect_grouping, s.train.proposal_method) == (False, True, "selective_search")
    assert (s.train.distort, s.train.channel_order, s.train.expand, s.train.crop, s.train.augmentation) == (0, 0, 1, 1, {})
    assert (s.test.scales, s.test.max_size, s.test.nms, s.test.rpn_nms_thresh) == ((600,), 1000, 0.3, 0.7)
    assert (s.test.rpn_pre_nms_top_n, s.test.rpn_post_nms_top_n, s.test.rpn_min_size) == (6000, 300, 16)
    assert (s.test.has_rpn, s.test.agnostic) == (False, False)
    assert (s.test.mask_merge_nms_thresh, s.test.mask_merge_iou_thresh, s.binarize_thresh, s.mask_size) == (0.3, 0.5, 0.4, 21)
    assert (s.pixel_means, s.rng_seed, s.dedup_boxes, s.eps) == ((102.9801, 115.9465, 122.7717), 3, 1 / 16, 1e-14)


@needs_models
def test_every_yml_of_the_originals_loads() -> None:
    paths = sorted(CFGS.glob("*/*.yml"))
    assert len(paths) == 7
    for path in paths:
        assert read_settings(path) != DetectionSettings()


@needs_models
def test_r_fcn_with_ohem() -> None:
    s = read_settings(SHARED / "models" / "cfgs" / "py-R-FCN" / "rfcn_end2end_ohem.yml")
    assert (s.train.batch_size, s.train.agnostic, s.train.rpn_normalize_targets, s.train.bg_thresh_lo) == (-1, True, True, 0.0)
    assert (s.train.rpn_pre_nms_top_n, s.train.rpn_post_nms_top_n, s.test.agnostic) == (6000, 300, True)
    assert s.train.fg_fraction == 0.25


def test_ints_for_floats_lists_for_tuples_and_the_originals_nested_means(tmp_path: Path) -> None:
    s = read_settings(
        written(
            tmp_path,
            "PIXEL_MEANS: [[[1, 2, 3.5]]]\nTRAIN:\n  SCALES: !!python/tuple [300, 400]\n  FG_THRESH: 1\nTEST: {SCALES: [200]}",
        )
    )
    assert s.pixel_means == (1.0, 2.0, 3.5)
    assert (s.train.scales, s.train.fg_thresh, s.test.scales) == ((300, 400), 1.0, (200,))
    assert isinstance(s.train.fg_thresh, float)


def test_an_empty_file_and_a_base(tmp_path: Path) -> None:
    base = DetectionSettings(rng_seed=8, train=TrainSettings(max_size=77))
    assert read_settings(written(tmp_path, "")) == DetectionSettings()
    assert read_settings(written(tmp_path, ""), base) == base
    s = read_settings(written(tmp_path, "TRAIN:\n  BATCH_SIZE: 5\n"), base)
    assert (s.rng_seed, s.train.max_size, s.train.batch_size) == (8, 77, 5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan"), np.float64("-inf")])
def test_settings_made_in_python_are_finite_too(value: float) -> None:
    with pytest.raises(SettingsError, match=r"^TEST\.NMS must be finite, got"):
        TestSettings(nms=value)
    with pytest.raises(SettingsError, match=r"^PIXEL_MEANS must be finite, got"):
        DetectionSettings(pixel_means=(1.0, value, 2.0))


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        current().train.max_size = 3  # type: ignore[misc]


def test_use() -> None:
    before = current()
    made = DetectionSettings(rng_seed=9)
    use(made)
    assert current() is made
    use(before)
    assert current() is before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TRAIN:\n  RPN_BATCH_SIZE: 3", r"some.yml: unknown setting TRAIN.RPN_BATCH_SIZE; did you mean TRAIN.RPN_BATCHSIZE\?"),
        ("TRIAN:\n  SCALES: [3]", r"unknown setting TRIAN; did you mean TRAIN\?"),
        ("TRAIN:\n  max_size: 3", r"unknown setting TRAIN.max_size; did you mean TRAIN.MAX_SIZE\?"),
        ("3: 4", "unknown setting 3$"),
        ("TRAIN: 3", "TRAIN must be a mapping of settings, got 3"),
        ("- a", r"the file must be a mapping of settings, got \['a'\]"),
        ("TRAIN:\n  MAX_SIZE: big", "TRAIN.MAX_SIZE must be a whole number, got 'big'"),
        ("TRAIN:\n  MAX_SIZE: 1.5", "TRAIN.MAX_SIZE must be a whole number, got 1.5"),
        ("TRAIN:\n  MAX_SIZE: True", "TRAIN.MAX_SIZE must be a whole number, got True"),
        ("TRAIN:\n  FG_THRESH: half", "TRAIN.FG_THRESH must be a number, got 'half'"),
        ("TRAIN:\n  USE_FLIPPED: 1", "TRAIN.USE_FLIPPED must be True or False, got 1"),
        ("EXP_DIR: 3", "EXP_DIR must be a string, got 3"),
        ("TEST:\n  SCALES: 600", "TEST.SCALES must be a list of one or more numbers, got 600"),
        ("TEST:\n  SCALES: []", r"TEST.SCALES must be a list of one or more numbers, got \[\]"),
        ("TEST:\n  SCALES: [a]", "TEST.SCALES must be a whole number, got 'a'"),
        ("PIXEL_MEANS: [1, 2]", r"PIXEL_MEANS must be a list of 3 numbers, got \[1, 2\]"),
        ("TRAIN:\n  SCALES: [600, 0]", r"TRAIN.SCALES must be > 0, got \(600, 0\)"),
        ("TRAIN:\n  BBOX_NORMALIZE_STDS: [1, 1, 0, 1]", r"TRAIN.BBOX_NORMALIZE_STDS must be > 0, got \(1.0, 1.0, 0.0, 1.0\)"),
        ("TEST:\n  MAX_SIZE: -5", "TEST.MAX_SIZE must be > 0, got -5"),
        ("TRAIN:\n  BATCH_SIZE: 0", "TRAIN.BATCH_SIZE must be > 0, or -1 for all rois, got 0"),
        ("TRAIN:\n  DISTORT: 2.5", "TRAIN.DISTORT must be from 0 to 2, got 2.5"),
        ("TRAIN:\n  CHANNEL_ORDER: -1", "TRAIN.CHANNEL_ORDER must be from 0 to 1, got -1"),
        ("TRAIN:\n  EXPAND: 0", "TRAIN.EXPAND must be from 1 to 100, got 0"),
        ("TRAIN:\n  CROP: 0", "TRAIN.CROP must be from 0.01 to 1, got 0"),
        ("TRAIN:\n  CROP: True", "TRAIN.CROP must be a number, got True"),
        ("TRAIN:\n  RPN_POSITIVE_WEIGHT: 1", "TRAIN.RPN_POSITIVE_WEIGHT must be negative or between 0 and 1, got 1.0"),
        ("TEST:\n  NMS: .nan", "some.yml: TEST.NMS must be finite, got nan"),
        ("TEST:\n  NMS: -.inf", "TEST.NMS must be finite, got -inf"),
        ("TRAIN:\n  RPN_POSITIVE_WEIGHT: .nan", "TRAIN.RPN_POSITIVE_WEIGHT must be finite, got nan"),
        (
            "TRAIN:\n  BBOX_NORMALIZE_STDS: [1, 1, .inf, 1]",
            r"TRAIN.BBOX_NORMALIZE_STDS must be finite, got \(1.0, 1.0, inf, 1.0\)",
        ),
        ("PIXEL_MEANS: [1, .nan, 3]", r"PIXEL_MEANS must be finite, got \(1.0, nan, 3.0\)"),
        ("TRAIN: [", "some.yml:[0-9]+: not plain YAML: .*line 1"),
        ("TRAIN:\n  MAX_SIZE: 0x" + "f" * 4000, "some.yml:[0-9]+: not plain YAML: .*beyond 64 bits.*line 2"),
        ("EPS: 0x" + "f" * 400, "some.yml:[0-9]+: not plain YAML: .*beyond 64 bits"),
        ("A: !!python/object/apply:os.system ['true']", "some.yml:[0-9]+: not plain YAML: could not determine a constructor"),
    ],
)
def test_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match="(?s)" + message):
        read_settings(written(tmp_path, text))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.yml: no such file"):
        read_settings(tmp_path / "gone.yml")
    (tmp_path / "bytes.yml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(SettingsError, match=r"bytes\.yml:1: not a text file"):
        read_settings(tmp_path / "bytes.yml")
