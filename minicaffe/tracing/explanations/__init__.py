"""minicaffe.explain: the arithmetic of one number of a layer, as typed numbers and as text.

    print(minicaffe.explain(net, "roi_pool5", roi=3, channel=12, bin=(2, 5)))
    minicaffe.explain(net, "conv1", (0, 4, 10, 7)).terms[0]

The geometry comes from the layers' functions. Every explanation holds the layer's number (`value`) and the result of its
arithmetic (`computed`). The functions in minicaffe.registry's explains and explains_gradient explain a type.
"""

from . import (  # they register their functions
    copies,
    deformed,
    elementwise,
    losses,
    normalisations,
    proposals,
    recurrent,
    roi_bins,
    ssd,
    targets,
    windows,
)
from .boxes import RowExplanation
from .explanation import Explanation, FunctionExplanation, GradientExplanation, MaxExplanation, SumExplanation
from .roi_explanations import (
    AxisWork,
    CellsExplanation,
    MaxBinExplanation,
    MeanBinExplanation,
    Neighbour,
    Roi,
    RoiExplanation,
    Sample,
    SamplesExplanation,
    ScoreMap,
)
from .runs import explain
from .terms import Term, Terms

__all__ = [
    "AxisWork",
    "CellsExplanation",
    "Explanation",
    "FunctionExplanation",
    "GradientExplanation",
    "MaxBinExplanation",
    "MaxExplanation",
    "MeanBinExplanation",
    "Neighbour",
    "Roi",
    "RoiExplanation",
    "RowExplanation",
    "Sample",
    "SamplesExplanation",
    "ScoreMap",
    "SumExplanation",
    "Term",
    "Terms",
    "copies",
    "deformed",
    "elementwise",
    "explain",
    "losses",
    "normalisations",
    "proposals",
    "recurrent",
    "roi_bins",
    "ssd",
    "targets",
    "windows",
]
