"""An ONNX model in onnxruntime, on the CPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Arrays
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
        with opened(self.path):  # OSError, before onnxruntime makes it something else
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
        """The numeric outputs by name; inputs that the model lacks are ignored. Raises Error."""
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
        """The outputs, computed in a separate thread: a model may loop forever, and onnxruntime blocks signals."""
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
    """The outputs of an ONNX model for these inputs. Raises Error."""
    return Session(path).run(inputs)


def _with_all_outputs(path: str) -> bytes:
    """The model with every tensor as an output, without its external weights."""
    import onnx

    model = onnx.load(path, "protobuf", load_external_data=False)
    kept = {output.name for output in model.graph.output}
    inner = [name for node in model.graph.node for name in node.output if name and name not in kept]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)  # onnxruntime infers their types
    serialized: bytes = model.SerializeToString()
    return serialized
