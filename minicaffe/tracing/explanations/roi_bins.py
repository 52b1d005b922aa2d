"""One bin of ROIPooling or PSROIPooling explained, with the layers' own geometry."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_geometry import LOWEST, BinPlan
from minicaffe.layers.roi_pooling import ROIPooling
from minicaffe.registry import explains

from . import roi_text
from .case import Array, Case
from .explanation import SHARE, Explanation
from .roi_explanations import MaxBinExplanation, MeanBinExplanation
from .roi_steps import geometry_of, plan_of_roi, score_map
from .rois import Pair
from .terms import Index


@explains(ROIPooling)
def roi_pooling(case: Case, at: Index) -> Explanation:
    r, c, ph, pw = at
    plan = plan_of_roi(case, r)
    clipped, cells = _bin(case, plan, c, ph, pw)
    kept = np.fmax(cells, cells.dtype.type(LOWEST))
    computed = float(kept.max()) if cells.size else 0.0
    argmax = None
    if cells.size and computed > LOWEST:
        row, column = np.unravel_index(int(kept.argmax()), cells.shape)
        argmax = (int(clipped[0][0] + row), int(clipped[1][0] + column))
    return MaxBinExplanation(
        formula="y[r, c, ph, pw] = the maximum of x[image of r, c] over the cells of bin (ph, pw) of roi r",
        computed=computed,
        argmax=argmax,
        cells=cells,
        **geometry_of(case, at, plan, clipped, c, roi_text.roi_pooling),
        **case.named(at),
    )


@explains(PSROIPooling)
def psroi_pooling(case: Case, at: Index) -> Explanation:
    r, d, gh, gw = at
    plan, score = plan_of_roi(case, r), score_map(case.layer.operator.group_size, d, gh, gw)
    clipped, cells = _bin(case, plan, score.channel, gh, gw)
    area = max(cells.size, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        computed = float(cells.sum(dtype=np.float64) / area)
    return MeanBinExplanation(
        formula="y[r, d, gh, gw] = the mean of x[image of r, (d * g + gh) * g + gw] over the cells of bin (gh, gw) of roi r",
        computed=computed,
        tolerance=float(SHARE * np.abs(cells, dtype=np.float64).sum() / area),
        cells=cells,
        score_map=score,
        **geometry_of(case, at, plan, clipped, score.channel, roi_text.psroi_pooling),
        **case.named(at),
    )


def _bin(case: Case, plan: BinPlan, channel: int, ph: int, pw: int) -> tuple[tuple[Pair, Pair], Array]:
    """The ends of a bin's rows and columns, and a copy of its cells."""
    rows, columns = plan.places.of(0, ph, pw)
    cells: Array = case.x[plan.images[0], channel][np.ix_(rows, columns)]
    return ((rows.start, rows.stop), (columns.start, columns.stop)), cells
