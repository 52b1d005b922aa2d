"""Caffe nets as ONNX models of standard operators.

minicaffe.export_onnx(net, "model.onnx")
differences = minicaffe.onnx_export.compare_with_net(net, "model.onnx")
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from minicaffe.net import Net
from minicaffe.porting.agreement import Difference, differences, run_of

from . import detection, forms, functions, recurrent, rois  # noqa: F401  # their functions are the entries of minicaffe.registry's table
from .model import DEFAULT_OPSET, OLDEST_OPSET, onnx_model, write_model
from .session import run_model
from .whole import Whole, compare_with_detect

__all__ = [
    "DEFAULT_OPSET",
    "OLDEST_OPSET",
    "Difference",
    "Whole",
    "compare_with_detect",
    "compare_with_net",
    "export_onnx",
    "onnx_model",
    "run_model",
]


def export_onnx(
    net: Net,
    path: str | os.PathLike[str],
    *,
    opset: int = DEFAULT_OPSET,
    until: str | None = None,
    fold: bool = False,
    whole: Whole | None = None,
    classes: Sequence[str] | None = None,
) -> str | None:
    """Write a net as an ONNX model of standard operators, and check it.

    The net and its blobs do not change.

    Parameters
    ----------
    net : Net
        The net, of phase TEST.
    path : str or path
        The model's file.
    opset : int, default 18
        The version of ONNX's operators.
    until : str, optional
        Export only the layers that this layer needs, with its tops as outputs.
    fold : bool, default False
        Fold BatchNorm, Scale and Bias layers into the convolutions before them.
    whole : Whole, optional
        Put the photo before the net, or boxes after it.
    classes : sequence of str, optional
        The names of the net's classes, for the model's metadata `class_names`.
        Default: the names that detect and segment take for their number.

    Returns
    -------
    str or None
        The name of the separate file for more than 2 GB of weights, else None.

    Raises
    ------
    Error
        The opset is too old or unknown, or the net's phase is TRAIN.
    LayerError
        A layer has no ONNX form.
    """
    if fold:
        from minicaffe.porting.merge_bn import merge_net

        net = merge_net(net)[0]
    return write_model(*onnx_model(net, opset=opset, until=until, whole=whole, classes=classes), path)


def compare_with_net(net: Net, path: str | os.PathLike[str], *, until: str | None = None) -> list[Difference]:
    """Run the net (up to a layer) and the model on the net's inputs. Return a Difference for each output of the model.

    Proposals with nearly equal scores may swap: they and the outputs computed from them are first brought into one order.
    """
    made = run_model(path, {name: net.blobs[name].read_data().copy() for name in net.inputs})
    return differences(run_of(net, made, until=until), made)
