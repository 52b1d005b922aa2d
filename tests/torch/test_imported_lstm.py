"""PyTorch's nn.LSTM, exported to ONNX by PyTorch and imported."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import numpy as np
import torch
from torch import nn

from minicaffe.porting.onnx_import import import_onnx


class Model(nn.Module):
    """An LSTM and a Linear on all steps, on the last state h, or the last c alone."""

    def __init__(self, read: str, bidirectional: bool, layers: int) -> None:
        super().__init__()
        self.read = read
        self.lstm = nn.LSTM(6, 4, batch_first=True, bidirectional=bidirectional, num_layers=layers)
        self.fc = nn.Linear(4 if read == "h" else 4 * (1 + bidirectional), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, (h, c) = self.lstm(x)
        return c if self.read == "c" else self.fc(h[-1] if self.read == "h" else y)


@pytest.mark.parametrize("read", ["y", "h", "c"])
@pytest.mark.parametrize(("bidirectional", "layers"), [(False, 1), (False, 2), (True, 2)])
def test_it_gives_the_same_numbers(read: str, bidirectional: bool, layers: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Model(read, bidirectional, layers).eval(), torch.randn(2, 5, 6)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), tmp_path / "m.onnx", dynamo=False, input_names=["x"], output_names=["y"])
        expected = model(x).numpy()
    imported = import_onnx(tmp_path / "m.onnx")
    assert [layer.type for layer in imported.param.layer].count("LSTM") == layers * (1 + bidirectional)
    net = imported.net()
    net.blobs["x"].data[...] = x.numpy()
    np.testing.assert_allclose(net.forward()["y"], expected, rtol=1e-5, atol=1e-6)
