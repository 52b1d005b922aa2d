"""Which output of a net holds what a command is after, and whether it holds numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error, ways
from minicaffe.layers.proposal.dynamic_tops import dynamic_rois
from minicaffe.net import Net


def only_output(net: Net, file: str, found: Sequence[str], what: str) -> str:
    """The one output that was found to hold what a command is after. Raises Error for none and for several."""
    if len(found) == 1:
        return found[0]
    said = f"{len(found)} outputs that hold" if found else "no output that holds"
    way = ways(": choose one with --blob")
    outputs = ", ".join(f"{name} {'x'.join(map(str, net.blobs[name].shape))}" for name in net.outputs)
    raise Error(f"{file}: {said} {what}; its outputs are {outputs}{way}")


def proposal_sources(net: Net) -> list[str]:
    """The blobs that the net's proposals are made of: the bottoms of layers that make rois."""
    made = (name for layer in net.layers if dynamic_rois(layer) for name in net.bottom_names[layer.name])
    return [name for name in dict.fromkeys(made) if name not in net.inputs]


def check_scores(scores: Array, name: str = "", what: str = "scores") -> None:
    """Raises Error for scores that are NaN or infinite. name: the blob that they are in, and what it holds, for the error."""
    if not np.isfinite(scores).all():
        where = f' in "{name}"' * bool(name)
        raise Error(f"the net gives {what} that are NaN or infinite{where}: minicaffe.check_finite finds the first such layer")
