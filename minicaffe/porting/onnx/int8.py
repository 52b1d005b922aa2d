"""INT8: a model's convolutions and inner products in 8 bits, by onnxruntime's static quantization.

Weights have a scale per output channel, activations one per tensor, from the range that they have on images for calibration.
Everything else stays float: a photo's preparation, proposals, ROI layers, box decoding, suppression.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Arrays
from minicaffe.detection.evaluation import ImageBoxes, average_precision
from minicaffe.errors import Error, install

from .session import Session

KINDS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""The operators whose products are in 8 bits, where they multiply by weights."""

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Labelled:
    """An image with its true boxes (n, 4), in pixels, and their classes (n,)."""

    pixels: Pixels
    boxes: NDArray[Any]
    classes: NDArray[Any]


def quantize(model: Path, feeds: Sequence[Mapping[str, Any]]) -> int:
    """Write the model again, with its products in 8 bits; how many. feeds: the model's inputs for each image.

    Raises Error for no image, a model without such products or with its weights in a separate file.
    """
    try:
        import onnx
        from onnxruntime import quantization
    except ImportError:
        raise Error(f"INT8 needs onnxruntime: {install('onnx')}") from None
    if not feeds:
        raise Error("INT8 needs images for its calibration, and there is none")
    graph = onnx.load(model, "protobuf", load_external_data=False).graph
    if any(weight.data_location == onnx.TensorProto.EXTERNAL for weight in graph.initializer):
        raise Error(f"{model.name}: a model of more than 2 GB cannot be quantized")
    weights = {weight.name for weight in graph.initializer}
    nodes = [node.name for node in graph.node if node.op_type in KINDS and weights & set(node.input[1:2])]
    if not nodes:
        raise Error(f"{model.name}: it has no convolution or inner product to quantize")
    taken = {item.name for item in graph.input}

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(feeds)

        def get_next(self) -> Any:
            feed = next(self._left, None)
            return feed and {name: array for name, array in feed.items() if name in taken}

    with tempfile.TemporaryDirectory() as folder, _quiet():
        given, made = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"  # it guesses the format from the suffix
        shutil.copyfile(model, given)
        try:
            quantization.quantize_static(
                str(given),
                str(made),
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                nodes_to_quantize=nodes,
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                reduce_range=True,  # 7 bits: with 8, the sum of two products overflows 16 bits where there is no VNNI
            )
        except Exception as error:  # of many types
            raise Error(f"{model.name}: onnxruntime cannot quantize it: {error}") from error
        model.write_bytes(made.read_bytes())
    return len(nodes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without onnxruntime's advice on the root logger."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def mean_average_precision(found: Sequence[Arrays], truth: Sequence[Labelled]) -> float:
    """mAP at IoU 0.5, as average_precision counts it, of the boxes, scores and classes that a model found on each image."""
    kinds = sorted({int(k) for image in truth for k in image.classes})
    if not kinds:
        raise Error("the labelled images have no boxes")
    each = [
        average_precision(
            [ImageBoxes(one["boxes"][one["classes"] == k], one["scores"][one["classes"] == k]) for one in found],
            [ImageBoxes(image.boxes[image.classes == k]) for image in truth],
        )
        for k in kinds
    ]
    return float(np.mean(each))


def outputs_on(model: Path, feeds: Sequence[Mapping[str, Any]]) -> list[Arrays]:
    """The outputs of a model for each of these inputs; inputs that it lacks are ignored."""
    session = Session(model)
    return [session.run(feed) for feed in feeds]
