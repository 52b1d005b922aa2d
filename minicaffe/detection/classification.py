"""The scores of a classifier, one for each class, and its best classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.drawings import class_name
from minicaffe.errors import Error
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.net import Net

from .families import rows_end


def softmax_outputs(net: Net) -> list[str]:
    """Return the outputs of the net that a Softmax makes."""
    return [top for node in net.nodes if isinstance(node.layer, Softmax) for top in node.top_names if top in net.outputs]


def scores_blob(net: Net) -> str | None:
    """Return the blob with the scores of a classifier: one for each class of an image; None for another net."""
    found = softmax_outputs(net)
    if len(found) != 1 or "rois" in net.blobs or rows_end(net):
        return None
    shape = net.blobs[found[0]].shape
    return found[0] if len(shape) > 1 and shape[0] and np.prod(shape[1:]) == shape[1] else None


def check_names(names: Sequence[str], file: str, classes: int) -> None:
    """Raise Error unless a file has a name for each class."""
    if len(names) != classes:
        raise Error(f"{file} has {len(names)} names, but the net has {classes} classes")


def best_classes(scores: Array, names: Sequence[str] | None, top: int) -> list[dict[str, Any]]:
    """Return the classes of the greatest scores (K,), the first of equal ones first."""
    order = np.argsort(-scores, kind="stable")[:top]
    return [{"class": class_name(int(k), names), "class_index": int(k), "score": round(float(scores[k]), 6)} for k in order]
