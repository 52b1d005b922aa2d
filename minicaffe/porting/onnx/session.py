"""An ONNX model in onnxruntime, on the CPU, also in INT8 by onnxruntime's static quantization.

Weights have a scale per output channel, activations one per tensor, from the range that they have on images for calibration.
Everything else stays float: a photo's preparation, proposals, ROI layers, box decoding, suppression.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Arrays
from minicaffe.detection.evaluation import ImageBoxes, average_precision
from minicaffe.errors import Error, first_of, install
from minicaffe.files import opened

TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
}
FOLDER = "session.model_external_initializers_file_folder_path"
"""onnxruntime's option for the folder of the external weights of a model that is passed as bytes."""
PATIENCE = 1.0
"""Seconds to wait for a stopped run: onnxruntime looks between two operators."""


class Session:
    """A loaded model. inner: run returns every numeric tensor, and graph optimisations are off.

    External weights stay in their file: only the model itself, then small, is held as bytes.
    Raises Error if onnxruntime is absent or cannot load the model; OSError if the file does not exist.
    """

    def __init__(self, path: str | os.PathLike[str], *, inner: bool = False) -> None:
        self.path = os.fspath(path)
        try:
            import onnxruntime
        except ImportError:
            raise Error(f"running an ONNX model needs onnxruntime: {install('onnx')}") from None
        self.version = f"onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4 if inner else 3
        with opened(self.path):  # raises OSError, which onnxruntime would convert
            pass
        try:
            if inner:
                options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
                options.add_session_config_entry(FOLDER, str(Path(self.path).absolute().parent))
            model = _with_all_outputs(self.path) if inner else self.path
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnx and onnxruntime raise various types
            raise Error(f"{self.path}: {self.version} cannot load it: {error}") from error
        self.inputs = {item.name: TYPES.get(item.type, np.float32) for item in self._session.get_inputs()}

    def run(self, inputs: Mapping[str, ArrayLike]) -> Arrays:
        """Return the numeric outputs by name. Inputs that the model lacks are ignored. Raises Error."""
        lacking = [name for name in self.inputs if name not in inputs]
        if lacking:
            raise Error(f"{self.path}: no array given for its inputs {first_of(lacking)}")
        given = {name: np.ascontiguousarray(inputs[name], kind) for name, kind in self.inputs.items()}
        names = [item.name for item in self._session.get_outputs()]
        try:
            values = self._run(names, given)
        except Exception as error:
            raise Error(f"{self.path}: {self.version} cannot run it: {error}") from error
        found = zip(names, values, strict=True)
        return {name: value for name, value in found if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"}

    def _run(self, names: list[str], given: Arrays) -> list[Any]:
        """Return the outputs, computed in a separate thread: a model may loop forever, and onnxruntime blocks signals."""
        import onnxruntime

        options = onnxruntime.RunOptions()
        found: Future[list[Any]] = Future()

        def compute() -> None:
            try:
                found.set_result(self._session.run(names, given, options))
            except Exception as error:
                found.set_exception(error)

        threading.Thread(target=compute, name="minicaffe-onnx", daemon=True).start()
        try:
            return found.result()
        except KeyboardInterrupt:
            options.terminate = True  # the thread ends at the next operator
            wait([found], PATIENCE)
            raise


def run_model(path: str | os.PathLike[str], inputs: Mapping[str, ArrayLike]) -> Arrays:
    """Return the outputs of an ONNX model for these inputs. Raises Error."""
    return Session(path).run(inputs)


def _with_all_outputs(path: str) -> bytes:
    """Return the model with every tensor as an output, without its external weights."""
    import onnx

    model = onnx.load(path, "protobuf", load_external_data=False)
    kept = {output.name for output in model.graph.output}
    inner = [name for node in model.graph.node for name in node.output if name and name not in kept]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)  # onnxruntime infers their types
    serialized: bytes = model.SerializeToString()
    return serialized


# INT8: convolutions and inner products in 8 bits.


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
    """Write the model again with its products in 8 bits; return their number. feeds: the model's inputs for each image.

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
        # quantize_static guesses the format from the suffix.
        given, made = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
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
                reduce_range=True,  # 7 bits: without VNNI the sum of two products of 8 bits overflows 16 bits
            )
        except Exception as error:  # onnxruntime raises various types
            raise Error(f"{model.name}: onnxruntime cannot quantize it: {error}") from error
        model.write_bytes(made.read_bytes())
    return len(nodes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence onnxruntime's advice on the root logger."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def mean_average_precision(found: Sequence[Arrays], truth: Sequence[Labelled]) -> float:
    """Return mAP at IoU 0.5 of the boxes, scores and classes that a model found on each image.

    It is the mean of average_precision over the classes of the true boxes.
    """
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
    """Return the outputs of a model for each of these inputs. Inputs that it lacks are ignored."""
    session = Session(model)
    return [session.run(feed) for feed in feeds]
