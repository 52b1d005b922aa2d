"""minicaffe.explain: one number of a layer worked out as on paper, with the numbers typed and the working printed.

    print(minicaffe.explain(net, "roi_pool5", roi=3, channel=12, bin=(2, 5)))
    minicaffe.explain(net, "conv1", (0, 4, 10, 7)).terms[0]

The geometry is the layers' own functions; every explanation holds the layer's number (`value`) and what its working gives
(`computed`). A type is explained by the functions that minicaffe.registry's explains and explains_gradient have for its class.
"""

from . import (  # noqa: F401  # their functions are the entries of minicaffe.registry's table
    batch_norm,
    convolutions,
    copies,
    functions,
    losses,
    lrn,
    pooling,
    products,
    roi_bins,
    roi_gradients,
    roi_sampling,
    softmax,
)
from .explanation import Explanation, FunctionExplanation, GradientExplanation, MaxExplanation, SumExplanation
from .roi_explanations import CellsExplanation, MaxBinExplanation, MeanBinExplanation, Neighbour, Sample, SamplesExplanation
from .rois import AxisWork, Roi, RoiExplanation, ScoreMap
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
    "Sample",
    "SamplesExplanation",
    "ScoreMap",
    "SumExplanation",
    "Term",
    "Terms",
    "explain",
]
