"""Comparison of two runs of what should be one net, layer by layer: the first difference, and its cause.

    result = compare("deploy.prototxt", "other.npz", weights_a="net.caffemodel")
    print(result)
    result.first.layer, result.first.cause

b is a net, an .npz of blobs from any framework, or an ONNX model. Causes are tested: the layer is recomputed as another
framework might compute it (causes.py), and a cause is named if that gives b's values.
"""

from __future__ import annotations

from .result import Comparison, Difference, Tolerance
from .walk import compare

__all__ = ["Comparison", "Difference", "Tolerance", "compare"]
