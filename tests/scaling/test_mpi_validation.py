"""Validation in a training on MPI: rank 0 validates and records, all ranks stop together, and the weights are as without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mpi_run import NEEDED, TRAIN, mpiexec
from small_rfcn import make_small_rfcn

pytest.importorskip("mpi4py", reason="the extra minicaffe[mpi] is not installed")
pytestmark = NEEDED

WORDS = (*TRAIN, "solver.prototxt", "--roidb", "train.json", "--cfg", "small.yml", "--engine", "mpi", "--batch", "4")


@pytest.mark.slow
def test_all_ranks_stop_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_small_rfcn()
    text = Path("solver.prototxt").read_text().replace("base_lr: 0.01", "base_lr: 1e-9")  # nothing gets better
    Path("solver.prototxt").write_text(text)
    val = ("--val", "val.json", "--val-every", "1", "--patience", "2")
    record = ("--csv", "run.csv", "--plot", "run.png")
    status, output = mpiexec("-n", "2", *WORDS, "--epochs", "20", *val, *record, folder=tmp_path)
    assert status == 0, output
    assert output.count("written: run.csv") == output.count("written: run.png") == 1
    assert "--batch: iter_size 2 in place of 1, at 1 image a pass" in output
    assert "--epochs: 20 x 4 images (mirror images included) / (1 a pass x iter_size 2 x 2 ranks) = 20 iterations" in output
    stopped = re.search(r"Iteration (\d+), 2 validations without a better one", output)
    assert stopped and 3 <= int(stopped[1]) < 20
    rows = Path("run.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == [str(i) for i in range(1, int(stopped[1]) + 1)]
    assert re.findall(r"best: run_best.caffemodel", output) == ["best: run_best.caffemodel"]
    name = f"run_iter_{stopped[1]}.caffemodel"
    validated = Path(name).read_bytes()
    status, output = mpiexec("-n", "2", *WORDS, *val, "--epochs", "20", "--snapshot", "latest", folder=tmp_path)
    assert status == 0 and "Optimization stopped early." in output, output
    assert not Path(f"run_iter_{int(stopped[1]) + 1}.caffemodel").exists()
    status, output = mpiexec("-n", "2", *WORDS, "--iterations", stopped[1], folder=tmp_path)
    assert status == 0 and Path(name).read_bytes() == validated, output
