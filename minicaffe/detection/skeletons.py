"""The skeletons of OpenPose's nets: names of parts, limbs, and the order of their maps.

A net with P parts and L limbs gives P heat maps, one of the background, and L fields of two maps, x and y.
Source: OpenPose's poseParameters.cpp (BODY_25, COCO and MPI).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Skeleton:
    """parts: their names. limbs: the two parts of each, in the order in which people are assembled. fields: the field of each
    limb. ears: limbs at the end of it that no person begins with, from shoulder to ear. feet: parts that do not count towards
    a person's fewest. threshold: of a part's score. field_threshold: of a field along a limb."""

    name: str
    parts: tuple[str, ...]
    limbs: tuple[tuple[int, int], ...]
    fields: tuple[int, ...]
    ears: frozenset[tuple[int, int]] = frozenset()
    feet: frozenset[int] = frozenset()
    threshold: float = 0.05
    field_threshold: float = 0.05

    @property
    def heat_maps(self) -> int:
        """The number of maps of parts, with the background's."""
        return len(self.parts) + 1

    @property
    def field_maps(self) -> int:
        return 2 * len(self.limbs)

    @property
    def maps(self) -> int:
        return self.heat_maps + self.field_maps


_ARMS = "Neck RShoulder RElbow RWrist LShoulder LElbow LWrist".split()
_LEGS = "RHip RKnee RAnkle LHip LKnee LAnkle".split()
_FACE = "REye LEye REar LEar".split()
_FEET = "LBigToe LSmallToe LHeel RBigToe RSmallToe RHeel".split()

COCO = Skeleton(
    "COCO",
    ("Nose", *_ARMS, *_LEGS, *_FACE),
    (
        (1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (1, 8), (8, 9), (9, 10), (1, 11), (11, 12), (12, 13),
        (1, 0), (0, 14), (14, 16), (0, 15), (15, 17), (2, 16), (5, 17),
    ),
    (6, 10, 7, 8, 11, 12, 0, 1, 2, 3, 4, 5, 14, 15, 17, 16, 18, 9, 13),
    ears=frozenset([(2, 16), (5, 17)]),
)  # fmt: skip
MPI = Skeleton(
    "MPI",
    ("Head", *_ARMS, *_LEGS, "Chest"),
    (
        (0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (5, 6), (6, 7), (1, 14), (14, 8), (8, 9), (9, 10), (14, 11), (11, 12),
        (12, 13),
    ),
    tuple(range(14)),
    threshold=0.6,
    field_threshold=0.01,
)  # fmt: skip
BODY_25 = Skeleton(
    "BODY_25",
    ("Nose", *_ARMS, "MidHip", *_LEGS, *_FACE, *_FEET),
    (
        (1, 8), (1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (8, 9), (9, 10), (10, 11), (8, 12), (12, 13), (13, 14),
        (1, 0), (0, 15), (15, 17), (0, 16), (16, 18), (2, 17), (5, 18),
        (14, 19), (19, 20), (14, 21), (11, 22), (22, 23), (11, 24),
    ),
    (0, 7, 11, 8, 9, 12, 13, 3, 1, 2, 4, 5, 6, 15, 16, 18, 17, 19, 10, 14, 20, 21, 22, 23, 24, 25),
    ears=frozenset([(2, 17), (5, 18)]),
    feet=frozenset(range(19, 25)),
)  # fmt: skip

SKELETONS = (COCO, MPI, BODY_25)
