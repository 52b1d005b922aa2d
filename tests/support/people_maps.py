"""The maps that an OpenPose net would give of people whose parts are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minicaffe.blob import Array
from minicaffe.detection.pose import Skeleton

People = Sequence[Mapping[int, tuple[float, float]]]
_STANDING = {
    "Nose": (0, 0), "Head": (0, -2), "Neck": (0, 20), "RShoulder": (-18, 21), "RElbow": (-26, 45), "RWrist": (-30, 68),
    "LShoulder": (18, 21), "LElbow": (27, 44), "LWrist": (33, 67), "MidHip": (0, 75), "Chest": (1, 45), "RHip": (-11, 76),
    "RKnee": (-13, 110), "RAnkle": (-14, 145), "LHip": (11, 76), "LKnee": (14, 111), "LAnkle": (16, 146), "REye": (-6, -6),
    "LEye": (6, -6), "REar": (-12, -3), "LEar": (12, -3), "LBigToe": (24, 158), "LSmallToe": (32, 152), "LHeel": (12, 153),
    "RBigToe": (-24, 158), "RSmallToe": (-32, 152), "RHeel": (-10, 153),
}  # fmt: skip


def standing(skeleton: Skeleton, x: float, y: float, scale: float = 1.0, without: str = "") -> dict[int, tuple[float, float]]:
    """Return the parts of a person whose nose is at x, y, in pixels of the net's input, other than those named."""
    return {
        k: (x + scale * _STANDING[name][0], y + scale * _STANDING[name][1])
        for k, name in enumerate(skeleton.parts)
        if name not in without.split()
    }


def maps_of(skeleton: Skeleton, people: People, height: int, width: int, stride: int = 8) -> Array:
    """Maps (P + 1 + 2 L, height / stride, width / stride): a Gaussian at each part, the direction of each limb beside it."""
    rows, columns = height // stride, width // stride
    y, x = (stride * (np.mgrid[:rows, :columns] + 0.5) - 0.5).astype(np.float32)
    heat = np.zeros((skeleton.heat_maps, rows, columns), np.float32)
    fields = np.zeros((len(skeleton.limbs), 2, rows, columns), np.float32)
    for parts in people:
        for k, (px, py) in parts.items():
            heat[k] = np.maximum(heat[k], np.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * 7.0**2)))
        for (a, b), k in zip(skeleton.limbs, skeleton.fields, strict=True):
            if a in parts and b in parts:
                _add_field(fields[k], np.array(parts[a]), np.array(parts[b]), x, y, stride)
    heat[-1] = 1 - heat[:-1].max(axis=0)
    return np.concatenate([heat, fields.reshape(-1, rows, columns)])


def _add_field(both: Array, start: Array, end: Array, x: Array, y: Array, stride: int) -> None:
    length = float(np.linalg.norm(end - start))
    way = (end - start) / length
    along = (x - start[0]) * way[0] + (y - start[1]) * way[1]
    beside = np.abs((x - start[0]) * way[1] - (y - start[1]) * way[0])
    both[:, (along > -stride) & (along < length + stride) & (beside <= stride)] = way[:, None]
