"""Mean and variance of a net's output over forwards with other Dropout masks, as in Bayesian SegNet.

    mean = sum y[k] / n        variance = sum (y[k] - mean)^2 / n        for n forwards on one input

Source: Kendall et al., Bayesian SegNet (arXiv:1511.02680); SegNet-Tutorial's test_bayesian_segnet.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.net import Net


class Sampled(NamedTuple):
    """The mean and the variance of each element of a blob, in float64."""

    mean: Array
    variance: Array


def sampled(net: Net, blob: str, samples: int) -> Sampled:
    """Run a net several times on its inputs, and return a blob's mean and variance.

    Parameters
    ----------
    net : Net
        The net. Its inputs do not change.
    blob : str
        An output, or another blob.
    samples : int
        The number of forwards, at least 2.

    Returns
    -------
    Sampled
        The mean and the variance, of the blob's shape.

    Raises
    ------
    Error
        There are fewer than 2 samples, or all samples are equal.

    Notes
    -----
    ``minicaffe.set_random_seed`` before the call makes the samples reproducible.
    """
    if samples < 2:
        raise Error(f"a variance needs at least 2 samples, got {samples}")
    inputs = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    mean = squares = np.zeros(())
    for k in range(1, samples + 1):
        for name, array in inputs.items():  # a layer may have changed them in place
            net.blobs[name].data[...] = array
        y = np.asarray(net.forward(blobs=[blob])[blob], np.float64)
        last, mean = mean, mean + (y - mean) / k  # Welford: a difference of squares would lose the variance of large numbers
        squares = squares + (y - last) * (y - mean) if k > 1 else np.zeros_like(y)
    for name, array in inputs.items():
        net.blobs[name].data[...] = array
    if not squares.any():
        raise Error(
            f"all {samples} samples of {blob} are equal: no layer draws random numbers in TEST. Write sample_weights_test: true"
            " in the dropout_param of the net's Dropout layers"
        )
    return Sampled(mean, squares / samples)
