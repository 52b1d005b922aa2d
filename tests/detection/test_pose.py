"""People assembled from the maps of parts and limbs."""

from __future__ import annotations

import numpy as np
import pytest
from people_maps import maps_of, standing

from minicaffe.detection.pose import (
    BODY_25,
    COCO,
    MOST_PEAKS,
    MPI,
    SKELETONS,
    Skeleton,
    best_pairs,
    find_peaks,
    find_people,
    limb_scores,
)
from minicaffe.errors import Error

HEIGHT, WIDTH = 240, 400


def assert_people(maps: np.ndarray, skeleton: Skeleton, wanted: list[dict[int, tuple[float, float]]], **given: float) -> None:
    found = find_people(maps, skeleton, HEIGHT, WIDTH, **given)
    assert len(found) == len(wanted)
    nearest = sorted(found, key=lambda person: min(x for x, _, _ in person.parts.values()))
    for person, parts in zip(nearest, sorted(wanted, key=lambda parts: min(x for x, _ in parts.values())), strict=True):
        assert set(person.parts) == set(parts)
        for k, (x, y) in parts.items():
            assert person.parts[k][:2] == pytest.approx((x, y), abs=2), skeleton.parts[k]
            assert person.parts[k][2] > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skeleton", "count"), [(COCO, 1), (COCO, 2), *((one, 3) for one in SKELETONS)], ids=lambda one: getattr(one, "name", one)
)
def test_standing_people_are_found(skeleton: Skeleton, count: int) -> None:
    people = [standing(skeleton, 60 + 120 * k, 30 + 9 * k, 1.1 - 0.1 * k) for k in range(count)]
    assert_people(maps_of(skeleton, people, HEIGHT, WIDTH), skeleton, people, threshold=0.3)


def test_people_side_by_side_keep_their_own_limbs() -> None:
    """Both right wrists are nearer to the other person's elbow than limbs are long."""
    people = [standing(COCO, 150, 40), standing(COCO, 205, 44)]
    assert_people(maps_of(COCO, people, HEIGHT, WIDTH), COCO, people)


def test_hidden_parts_are_left_out() -> None:
    people = [standing(COCO, 80, 40, without="RWrist LAnkle LKnee"), standing(COCO, 250, 40, without="LEar Nose LEye REye")]
    del people[1][COCO.parts.index("REar")]
    assert_people(maps_of(COCO, people, HEIGHT, WIDTH), COCO, people)


def test_an_ear_hangs_on_a_shoulder_where_the_eye_is_hidden() -> None:
    turned = standing(COCO, 200, 40, without="REye LEye LEar")
    maps = maps_of(COCO, [turned], HEIGHT, WIDTH)
    assert_people(maps, COCO, [turned])
    k = COCO.heat_maps + 2 * COCO.fields[COCO.limbs.index((2, 16))]
    maps[k : k + 2] = 0
    del turned[COCO.parts.index("REar")]
    assert_people(maps, COCO, [turned])


def test_feet_alone_are_nobody() -> None:
    legs = "LAnkle LBigToe LSmallToe LHeel".split()
    feet = standing(BODY_25, 200, 40, without=" ".join(name for name in BODY_25.parts if name not in legs))
    assert not find_people(maps_of(BODY_25, [feet], HEIGHT, WIDTH), BODY_25, HEIGHT, WIDTH)
    arm = standing(BODY_25, 200, 40, without=" ".join(set(BODY_25.parts) - {"RShoulder", "RElbow", "RWrist"}))
    assert_people(maps_of(BODY_25, [arm], HEIGHT, WIDTH), BODY_25, [arm])
    del arm[BODY_25.parts.index("RWrist")]
    assert not find_people(maps_of(BODY_25, [arm], HEIGHT, WIDTH), BODY_25, HEIGHT, WIDTH)


def test_the_total_is_the_sum_of_parts_and_limbs() -> None:
    person = standing(MPI, 200, 40)
    (found,) = find_people(maps_of(MPI, [person], HEIGHT, WIDTH), MPI, HEIGHT, WIDTH, 0.3)
    heat = sum(score for _, _, score in found.parts.values())
    assert found.counted == 15 and heat + 14 * 0.8 < found.total < heat + 14 * 1.2


def test_weak_people_are_dropped() -> None:
    maps = maps_of(COCO, [standing(COCO, 200, 40)], HEIGHT, WIDTH)
    assert len(find_people(0.3 * maps, COCO, HEIGHT, WIDTH)) == 1
    assert not find_people(0.15 * maps, COCO, HEIGHT, WIDTH)  # a score of 0.3 for each part


def test_empty_maps_have_nobody() -> None:
    assert find_people(np.zeros((57, 3, 4), np.float32), COCO, 24, 32) == []


def test_peaks_by_hand() -> None:
    heat = np.zeros((20, 30), np.float32)
    heat[5, 7], heat[5, 8] = 0.5, 0.25  # one peak, drawn to the right
    heat[12:14, 20:22] = 0.75  # four equal pixels: one peak, in their middle
    heat[0, 29] = 1  # at the corner
    heat[18, 3] = 0.1  # not above the threshold
    peaks = find_peaks(heat, 0.1)
    assert peaks == pytest.approx(np.array([[29, 0, 1], [7 + 1 / 3, 5, 0.5], [20.5, 12.5, 0.75]]), abs=1e-6)


def test_the_highest_peaks_are_kept() -> None:
    heat = np.zeros((40, 60), np.float32)
    heat[::3, ::3] = np.linspace(0.2, 0.9, 14 * 20).reshape(14, 20)
    peaks = find_peaks(heat, 0.1)
    assert len(peaks) == MOST_PEAKS
    assert peaks[:, 2].min() == np.sort(heat[heat > 0])[-MOST_PEAKS]


def test_limb_scores_by_hand() -> None:
    a, b = np.array([[2.0, 3, 1]]), np.array([[12.0, 3, 1], [2, 9, 1], [2, 3, 1]])
    both = np.zeros((10, 20, 2), np.float32)
    both[..., 0] = 0.5
    assert limb_scores(a, b, both, 0.05) == pytest.approx(np.array([[0.5, 0, 0]]))
    both[3, 5] = 0  # of 7 points one is gone
    assert not limb_scores(a, b, both, 0.05).any()


def test_the_best_pairs_come_first_and_share_nothing() -> None:
    assert best_pairs(np.array([[0.5, 0.9, 0.1], [0.6, 0.8, 0]])) == [(0, 1), (1, 0)]
    assert best_pairs(np.array([[0.5], [0.5]])) == [(0, 0)]
    assert best_pairs(np.zeros((2, 3))) == []


@pytest.mark.parametrize("shape", [(56, 3, 4), (58, 3, 4), (57, 0, 4), (57, 12)])
def test_another_number_of_maps(shape: tuple[int, ...]) -> None:
    with pytest.raises(Error, match=r"are not those of COCO: \(57, h, w\)"):
        find_people(np.zeros(shape, np.float32), COCO, 24, 32)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_maps_that_are_no_numbers(value: float) -> None:
    maps = np.zeros((44, 3, 4), np.float32)
    maps[20, 1, 2] = value
    with pytest.raises(Error, match="NaN or infinite"):
        find_people(maps, MPI, 24, 32)


def test_skeletons_hang_together() -> None:
    """Each part other than the first limb's is the end of one limb, ears aside; limbs have one field each."""
    for one in SKELETONS:
        limbs = [limb for limb in one.limbs if limb not in one.ears]
        assert sorted(b for _, b in limbs) == sorted(set(range(len(one.parts))) - {one.limbs[0][0]})
        assert sorted(one.fields) == list(range(len(one.limbs)))
    assert [one.maps for one in SKELETONS] == [57, 44, 78]
