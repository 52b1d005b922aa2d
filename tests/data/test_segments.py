"""Segments of videos."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.clips import SegmentTransformer, check_pattern, offsets
from minicaffe.data.image_bytes import resized
from minicaffe.errors import DataError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.proto import caffe_pb2

VIDEO = (np.arange(12)[:, None] * 16 + np.arange(16)).astype(np.uint8) + np.arange(2, dtype=np.uint8)[:, None, None]


def transformer(phase: Phase = TRAIN, seed: int = 0, **fields: object) -> SegmentTransformer:
    param = caffe_pb2.TransformationParameter(crop_size=8, **fields)
    return SegmentTransformer(param, phase, np.random.default_rng(seed), np.float32)


def crops(count: int, **fields: object) -> list[np.ndarray]:
    made, out = transformer(**fields), np.empty((2, 8, 8), np.float32)
    found = []
    for _ in range(count):
        made.transform(VIDEO, out)
        found.append(out.copy())
    return found


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_offsets_are_in_their_parts(length: int, segments: int, frames: int, drawn: bool) -> None:
    found, part = offsets(length, segments, frames, np.random.default_rng(length) if drawn else None), length // segments
    if part < frames:
        assert found == [1] * segments
    else:
        assert all(i * part <= at and at + frames <= (i + 1) * part for i, at in enumerate(found))


@pytest.mark.parametrize(("more", "places"), [(False, 5), (True, 13)])
def test_fixed_crops(more: bool, places: int) -> None:
    """Steps of (12 - 8) / 4 rows and (16 - 8) / 4 columns."""
    found = {divmod(int(crop[0, 0, 0]), 16) for crop in crops(200, fix_crop=True, more_fix_crop=more)}
    corners = {(0, 0), (0, 8), (4, 0), (4, 8), (2, 4)}
    others = {(0, 4), (4, 4), (2, 0), (2, 8), (1, 2), (1, 6), (3, 2), (3, 6)}
    assert found == (corners | others if more else corners) and len(found) == places


def test_free_crops_and_the_middle() -> None:
    assert {divmod(int(crop[0, 0, 0]), 16) for crop in crops(400)} == {(y, x) for y in range(5) for x in range(9)}
    assert {divmod(int(crop[0, 0, 0]), 16) for crop in crops(3, phase=TEST, multi_scale=True, fix_crop=True)} == {(2, 4)}


def test_sizes() -> None:
    """Of the short side 12: 12, 10, which is near enough to the crop, 8, and 4; with max_distort 1 those beside each other."""
    made = transformer(multi_scale=True, scale_ratios=[1, 0.875, 0.4])
    assert {made._size(VIDEO.shape) for _ in range(100)} == {(12, 12), (12, 8), (8, 12), (8, 8), (8, 4), (4, 8), (4, 4)}
    made = transformer(multi_scale=True, scale_ratios=[1, 0.4], max_distort=0)
    assert {made._size(VIDEO.shape) for _ in range(30)} == {(12, 12), (4, 4)}
    with pytest.raises(DataError, match="leave no crop of frames whose short side is 12"):
        transformer(multi_scale=True, max_distort=-1)._size(VIDEO.shape)


def test_another_size_is_resized_to_the_crop() -> None:
    (crop,) = crops(1, multi_scale=True, scale_ratios=[0.4], fix_crop=True, seed=3)
    places = [(0, 0), (0, 12), (8, 0), (8, 12), (4, 6)]
    wanted = [resized(VIDEO[:, y : y + 4, x : x + 4].transpose(1, 2, 0), 8, 8).transpose(2, 0, 1) for y, x in places]
    assert any(np.array_equal(crop, one) for one in wanted)


def test_a_mean_file(tmp_path: object) -> None:
    mean = np.arange(2 * 12 * 16, dtype=np.float32).reshape(1, 2, 12, 16) / 7
    file = f"{tmp_path}/mean.binaryproto"
    write_binaryproto(file, mean)
    (crop,) = crops(1, phase=TEST, mean_file=file)
    np.testing.assert_allclose(crop, VIDEO[:, 2:10, 4:12] - mean[0, :, 2:10, 4:12], rtol=1e-6)
    (crop,) = crops(1, phase=TEST, mean_file=file, multi_scale=True)
    np.testing.assert_allclose(crop, VIDEO[:, 2:10, 4:12] - mean[0, :, :8, :8], rtol=1e-6)
    with pytest.raises(DataError, match=r"has shape \(2, 12, 16\), the video has \(2, 12, 15\)"):
        transformer(mean_file=file).shape((2, 12, 15))


@pytest.mark.parametrize(
    ("pattern", "in_colour", "wanted"),
    [("", True, "image_%04d.jpg"), ("", False, "flow_%c_%04d.jpg"), ("a%d", True, "a%d"), ("%c%05d.png", False, "%c%05d.png")],
)
def test_patterns(pattern: str, in_colour: bool, wanted: str) -> None:
    assert check_pattern(pattern, in_colour) == wanted


@pytest.mark.parametrize(
    ("pattern", "in_colour"), [("%c%d", True), ("%d", False), ("%d%c", False), ("%d%d", True), ("%s", True)]
)
def test_wrong_patterns(pattern: str, in_colour: bool) -> None:
    with pytest.raises(DataError, match="must have"):
        check_pattern(pattern, in_colour)
