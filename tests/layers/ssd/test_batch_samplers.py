"""SSD's random crops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from ssd_reference import made_boxes

from minicaffe.layers.ssd.batch_samplers import coverage, draw_crop, sample_box, satisfies, seen_in
from minicaffe.proto import caffe_pb2

OBJECTS = np.array([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])


def constraint(**bounds: float) -> caffe_pb2.SampleConstraint:
    return caffe_pb2.SampleConstraint(**bounds)


@given(st.integers(0, 999), st.floats(0.1, 1), st.floats(0.3, 1))
def test_boxes_lie_inside_and_keep_scale_and_ratio(seed: int, scale: float, ratio: float) -> None:
    sampler = caffe_pb2.Sampler(min_scale=scale, max_scale=1, min_aspect_ratio=ratio, max_aspect_ratio=1 / ratio)
    box = sample_box(sampler, np.random.default_rng(seed))
    size = box[2:] - box[:2]
    assert (box >= 0).all() and (box <= 1 + 1e-6).all()
    assert size.prod() >= scale**2 - 1e-6 and ratio - 1e-6 <= size[0] / size[1] <= 1 / ratio + 1e-6


def test_coverage_and_constraints_by_hand() -> None:
    """The left half overlaps the first object by 1 / 2, is half covered by it, and covers it whole."""
    half = np.array([0.0, 0.0, 0.5, 1.0])
    np.testing.assert_allclose(coverage(half[None], OBJECTS), [0.5, 0])
    np.testing.assert_allclose(coverage(OBJECTS, half[None]), [1, 0])
    assert satisfies(half, OBJECTS, constraint())
    assert satisfies(half, OBJECTS, constraint(min_jaccard_overlap=0.5))
    assert not satisfies(half, OBJECTS, constraint(min_jaccard_overlap=0.6))
    assert satisfies(half, OBJECTS, constraint(min_object_coverage=0.9))
    assert satisfies(half, OBJECTS, constraint(max_sample_coverage=0.1))
    assert not satisfies(half, np.zeros((0, 4)), constraint(max_jaccard_overlap=1))


def test_draw_crop_keeps_to_its_limits() -> None:
    sampler = caffe_pb2.BatchSampler(
        sampler=caffe_pb2.Sampler(min_scale=0.3, max_scale=1, min_aspect_ratio=0.5, max_aspect_ratio=2),
        sample_constraint=constraint(min_jaccard_overlap=0.3),
        max_sample=1,
        max_trials=50,
    )
    random = np.random.default_rng(3)
    for seed in range(5):
        crop = draw_crop([sampler], made_boxes(3, seed), random)
        assert crop is None or satisfies(crop, made_boxes(3, seed), sampler.sample_constraint)
    sampler.sample_constraint.min_jaccard_overlap = 2
    assert draw_crop([sampler], OBJECTS, random) is None
    assert draw_crop([], OBJECTS, random) is None


def test_objects_seen_in_a_crop() -> None:
    """The crop is the middle quarter: of each object its inner corner is in it."""
    crop = np.array([0.25, 0.25, 0.75, 0.75])
    moved, counts = seen_in(crop, OBJECTS, None)
    np.testing.assert_allclose(moved, [[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]])
    assert counts.tolist() == [True, True]
    moved_away = OBJECTS + np.array([0.0, 0.3, 0.0, 0.3])
    assert seen_in(crop, moved_away, None)[1].tolist() == [True, False]
    centre = caffe_pb2.EmitConstraint(emit_type=caffe_pb2.EmitConstraint.CENTER)
    assert seen_in(crop, OBJECTS * 0.8, centre)[1].tolist() == [False, True]
    least = caffe_pb2.EmitConstraint(emit_type=caffe_pb2.EmitConstraint.MIN_OVERLAP, emit_overlap=0.25)
    assert seen_in(crop, OBJECTS, least)[1].tolist() == [False, False]
    least.emit_overlap = 0.2
    assert seen_in(crop, OBJECTS, least)[1].tolist() == [True, True]
