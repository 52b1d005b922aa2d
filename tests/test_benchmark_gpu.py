"""benchmarks/gpu.py: all of it but the times, which a fake clock gives here."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from which_device import skip_on_gpu

import minicaffe
from minicaffe.cuda import blas
from minicaffe.cuda.device import current

ROOT = Path(__file__).parent.parent
RFCN = ROOT / "examples" / "shapes" / "rfcn" / "test.prototxt"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.gpu")


@pytest.fixture
def gpu_mode() -> Iterator[None]:
    minicaffe.set_mode_gpu()
    yield
    minicaffe.set_mode_cpu()


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks._torch", None)
    monkeypatch.setitem(sys.modules, "torch", None)


def one_microsecond(run: Any) -> float:
    run()
    return 1.0


def test_floors_are_the_bytes_over_the_bandwidth(gpu: ModuleType) -> None:
    """The H200's figures assume 4.3 TB/s, with every byte moved once."""
    for case in gpu.CASES:
        for i, count in enumerate((300, 2000)):
            out = count * case.channels * 49 if "PS" not in case.name else count * case.channels
            nbytes = 4 * (case.channels * 38 * 63 + 5 * count + out * (1 + case.argmax))
            for direction in ("forward", "backward"):
                if (case.name, direction) in gpu.H200:
                    assert 1e6 * nbytes / 4.3e12 == pytest.approx(gpu.H200[case.name, direction][i], abs=1.1, rel=0.03)


def test_the_bytes_of_a_layer(gpu: ModuleType) -> None:
    for case in gpu.CASES:
        ours = gpu.Roi(case, *gpu.inputs(case.channels, 3, (5, 6)))
        out = 3 * case.channels * (1 if "PS" in case.name else 49)
        assert ours.nbytes == 4 * (case.channels * 30 + 15 + out * (1 + case.argmax)), case.name


@pytest.mark.gpu
def test_tables(gpu: ModuleType, gpu_mode: None, no_torch: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = current()
    assert gpu.bandwidth(device, one_microsecond, 1000) == 2e9
    gpu_bandwidth, gpu.COPIED = gpu.COPIED, 2**20
    rows = [
        row
        for case in gpu.CASES[:3] + gpu.CASES[5:]
        for count in (2, 3)
        for row in gpu.kernel_rows(case, count, (7, 9), 1e9, one_microsecond, None)
    ]
    gpu.COPIED = gpu_bandwidth
    assert [row.direction for row in rows] == ["forward", "backward"] * 8
    assert all(row.ours == 1 and row.floor > 0 and row.peer is None and row.h200 is None for row in rows)
    results = gpu.Results(device.name, 2e12, rows=rows, nets=[gpu.NetRow("net", "forward", "TF32", 300, 2.5, 0.5, 5, 0.25)])
    assert gpu.torch_peers(results) is None
    text = results.markdown()
    assert f"Taken on {device.name}; a copy within it moves 2.00 TB/s. Left out: torch and torchvision" in text
    assert "| ROIPooling | forward | 2 | 1.0 | " in text
    assert "| net | forward | TF32 | 300 | 2.5 | 0.50 | 5.0 | 2.00 | 0.25 |" in text
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{gpu.BEGIN}\nold\n{gpu.END}\nafter\n")
    for _ in range(2):
        gpu.write(document, text)
    assert document.read_text() == f"before\n{gpu.BEGIN}\n\n{text}\n\n{gpu.END}\nafter\n"


@pytest.mark.gpu
def test_a_net(gpu: ModuleType, gpu_mode: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    rows = list(gpu.net_rows("shapes", RFCN, None, size=(64, 96)))
    works = [("forward", "float32"), ("forward", "TF32"), ("forward, backward", "float32"), ("forward, backward", "TF32")]
    assert [(row.work, row.precision) for row in rows] == works
    assert all(row.ours > 0 and row.rois > 30 and row.cells()[6:] == ["", "", ""] for row in rows)
    assert 0 < rows[0].memory < rows[2].memory  # gradients take memory
    assert not blas.tf32_allowed()


def test_the_outputs_of_a_net_give_weights_a_gradient(gpu: ModuleType) -> None:
    net = gpu.random_net(gpu.with_losses(RFCN), (1, 3, 64, 96))
    gpu.passes(net)()
    for layer in net.layers:
        if layer.type != "BatchNorm" and "rpn" not in layer.name:  # Proposal has no gradient
            assert all(np.abs(blob.read_diff()).max() > 0 for blob in layer.blobs), layer.name


@pytest.mark.gpu
def test_a_training_step(gpu: ModuleType, gpu_mode: None, monkeypatch: pytest.MonkeyPatch) -> None:
    net = gpu.random_net(RFCN, (1, 3, 64, 96))
    steps: list[int] = []
    monkeypatch.setattr(gpu, "random_solver", lambda file: SimpleNamespace(net=net, step=steps.append))
    rows = list(gpu.step_rows("shapes", RFCN.with_name("train.prototxt")))
    assert [(row.work, row.precision) for row in rows] == [("training step", "float32"), ("training step", "TF32")]
    assert all(row.ours > 0 and row.memory > 0 and row.rois > 30 for row in rows)
    assert steps == [1] * 2 * (gpu.ROUNDS + 2)


@pytest.mark.gpu
def test_events(gpu: ModuleType, gpu_mode: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a GPU; NaN from the test device, whose events measure nothing."""
    monkeypatch.setattr(gpu, "COPIED", 4096)
    monkeypatch.setattr(gpu, "int", lambda x: 1 if np.isnan(x) else int(x), raising=False)
    runs: list[int] = []
    microseconds = gpu.events_clock(current())(lambda: runs.append(1))
    assert np.isnan(microseconds) or microseconds >= 0
    assert len(runs) == 1 + gpu.LAUNCHES * (1 + gpu.ROUNDS)


def test_the_markers_are_in_the_document(gpu: ModuleType, tmp_path: Path) -> None:
    text = gpu.PERFORMANCE.read_text(encoding="utf-8")
    assert text.index(gpu.BEGIN) < text.index(gpu.END)
    (tmp_path / "none.md").write_text("text")
    with pytest.raises(SystemExit, match="it lacks the lines"):
        gpu.write(tmp_path / "none.md", "")


def test_results_that_differ_end_the_run(gpu: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"a and b differ by 0\.5 of the largest number"):
        gpu.same("a and b", np.float32([1, 1]), np.float32([1, 2]), 1e-5)
    with pytest.raises(SystemExit, match=r"have shapes \(2,\) and \(1, 2\)"):
        gpu.same("a and b", np.zeros(2), np.zeros((1, 2)), 1)
    with pytest.raises(SystemExit, match="differ by nan"):
        gpu.same("a and b", np.float32([np.nan]), np.float32([1]), 1)
    with pytest.raises(SystemExit, match="--net x: write it as NAME=FILE"):
        gpu.named_files(["x"])


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.gpu
def test_a_device_without_a_clock_gets_no_table() -> None:
    skip_on_gpu("this is a GPU, which has one")
    done = benchmark("gpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no table: the events of CPU test device (not a GPU) measure no time")


@pytest.mark.slow
def test_no_gpu_no_table(tmp_path: Path) -> None:
    done = benchmark("gpu", "--gpu", "99")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no table: ")


def test_options_of_a_table_without_any() -> None:
    done = benchmark("nothing", "--write")
    assert done.returncode == 2
    assert re.match(r"usage: python -m benchmarks \{caffe, .*gpu, .*\}", done.stderr)
