"""Random feature maps and rois for the ROI layers' tests: hypothesis strategies and fixed ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from minicaffe.layers.roi.operator import PositionSensitiveOperator, RoiOperator
from minicaffe.layers.roi.roi_geometry import RoiPlan

Array = NDArray[Any]


class Case(NamedTuple):
    """A feature map (N, C, H, W) and rois (R, 5), a scale, and how many bins."""

    x: Array
    rois: Array
    scale: float
    pooled: tuple[int, int]

    def operator(self, kind: type[RoiOperator], **more: Any) -> RoiOperator:
        """Return an operator with these sizes."""
        names = ["group_size"] if issubclass(kind, PositionSensitiveOperator) else ["pooled_h", "pooled_w"]
        return kind(**dict(zip(names, self.pooled)), spatial_scale=self.scale, **more)

    def plan(self, kind: type[RoiOperator], **more: Any) -> RoiPlan[Any]:
        """Return the operator's plan."""
        return self.operator(kind, **more).plan(self.rois, (self.x.shape[2], self.x.shape[3]))


@st.composite
def cases(draw: Any, *, groups: bool = False, dtype: Any = np.float32) -> Case:
    """Any geometry: rois inside, across and outside the map, malformed ones, and coordinates that tie when rounded."""
    images, height, width = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 11))
    group = draw(st.integers(1, 4))
    channels = draw(st.integers(1, 3)) * group**2 if groups else draw(st.integers(1, 3))
    scale = draw(st.sampled_from([1.0, 0.5, 0.0625, 1 / 3, 0.3]))
    reach = float(np.ceil(max(height, width) / scale))
    coordinate = st.one_of(
        st.integers(-4, int(reach) + 4).map(float),
        st.integers(-8, 2 * int(reach)).map(lambda v: v / 2),
        st.floats(-0.5 * reach, 1.5 * reach, width=32),
    )
    count = draw(st.integers(0, 4))
    rois = [[draw(st.integers(0, images - 1)), *(draw(coordinate) for _ in range(4))] for _ in range(count)]
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = random.standard_normal((images, channels, height, width))
    if draw(st.booleans()):
        x = np.round(2 * x)  # many equal values
    pooled = (group, group) if groups else (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    return Case(x.astype(dtype), np.array(rois, dtype).reshape(-1, 5), scale, pooled)


def some_rois(images: int = 2) -> Array:
    """Five rois at a scale of 0.5 on a map of about 6 x 7 to 7 x 9: inside, across an edge, outside, malformed, one pixel."""
    return np.array(
        [
            [0, 1.3, 2.2, 11.7, 9.4],
            [images - 1, -5.2, 3.1, 7.3, 20.8],
            [0, 30.0, 30.0, 40.0, 40.0],
            [images - 1, 9.1, 8.3, 5.2, 3.9],
            [0, 4.4, 4.4, 4.4, 4.4],
        ]
    )
