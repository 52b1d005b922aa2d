"""The caffe tool's side of the command line: its flags and spellings, its lines, signals, logs, and its command names."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import minicaffe
from minicaffe import Net, errors, set_random_seed, threads
from minicaffe.aliases import allowed_folders
from minicaffe.cli import CAFFE, COMMANDS, HIDDEN, main, train
from minicaffe.cli.doctor import blas_name
from minicaffe.cli.groups import use_device
from minicaffe.cli.install_caffe_command import MARK, TOOLS, install, scripts
from minicaffe.cli.options import TOOL_FLAGS, translate
from minicaffe.cuda import blas, device
from minicaffe.cuda.device import current
from minicaffe.errors import Error
from minicaffe.layers.python import python as python_layers
from minicaffe.mode import TEST, gpu_mode
from minicaffe.scaling.batch.rules import Rules
from minicaffe.threads import available_cores
from minicaffe.training.snapshots import read_state
from minicaffe.training.solver_log import parse_log, write_rows

ROOT = Path(__file__).parents[2]

NET = """name: "line"
layer { name: "data" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 6 dim: 3 } shape { dim: 6 dim: 2 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 0.5 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" loss_weight: 2 }
layer { name: "mean" type: "Reduction" bottom: "y" top: "mean" include { phase: TEST stage: "means" }
  reduction_param { operation: MEAN axis: 1 } }
layer { name: "deep" type: "AbsVal" bottom: "y" top: "deep" include { min_level: 2 } }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 snapshot_prefix: "out/line" random_seed: 3 '

GLOG = re.compile(r"I(\d{4}) (\d\d:\d\d:\d\d\.\d{6}) +(\d+) (\w+\.py):(\d+)\] (.*)")
"""glog's prefix."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def messages(text: str) -> list[str]:
    """The lines of a Caffe log, without their prefixes."""
    return [found[6] for line in text.splitlines() if (found := GLOG.fullmatch(line))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a net, its weights, and a solver."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER + "max_iter: 20 display: 5 test_iter: 2 test_interval: 10 snapshot: 8\n")
    set_random_seed(1)
    Net("net.prototxt", TEST).save("net.caffemodel")
    return tmp_path


# Spellings.


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["train", "-solver", "s.prototxt"], ["train", "--solver=s.prototxt"]),
        (["train", "--solver=s.prototxt"], ["train", "--solver=s.prototxt"]),
        (["train", "-solver=a=b"], ["train", "--solver=a=b"]),
        (["test", "-weights", "a,b", "-model=m"], ["test", "--weights=a", "--weights=b", "--model=m"]),
        (["train", "s", "-stage=a,b", "-level", "-1"], ["train", "s", "--stage=a", "--stage=b", "--level=-1"]),
        (
            ["train", "-sigint_effect", "none", "--sighup_effect=stop"],
            ["train", "--sigint-effect=none", "--sighup-effect=stop"],
        ),
        (["train", "--sigint-effect", "none"], ["train", "--sigint-effect=none"]),
        (["train", "s", "-snapshot=", "-weights", "", "-gpu="], ["train", "s"]),
        (["device_query", "-gpu", "0"], ["device-query", "--gpu=0"]),
        (["--debug", "time", "-model", "m"], ["--debug", "time", "--model=m"]),
        (["train", "s", "--out", "o", "--", "-solver"], ["train", "s", "--out", "o", "--", "-solver"]),
        (["test", "-iterations", "5", "--iterations=5"], ["test", "--iterations=5", "--iterations=5"]),
        (["run", "-model", "m"], ["run", "-model", "m"]),
        (["upgrade_net_proto_text", "a", "b"], ["upgrade", "a", "b"]),
        (["upgrade_net_proto_binary", "a", "b"], ["upgrade", "--binary", "a", "b"]),
        (["upgrade-solver-proto-text", "a", "b"], ["upgrade", "--solver", "a", "b"]),
        (["no_such", "-solver", "s"], ["no_such", "-solver", "s"]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_spellings(given: list[str], wanted: list[str]) -> None:
    assert translate(given, [*COMMANDS, *HIDDEN]) == wanted


def test_a_file_with_a_comma_in_its_name_stays_whole(folder: Path) -> None:
    (folder / "a,b").touch()
    assert translate(["test", "-weights", "a,b"], ["test"]) == ["test", "--weights=a,b"]
    assert translate(["test", "-weights", "a,c"], ["test"]) == ["test", "--weights=a", "--weights=c"]


VALUES = st.text("abc/._7", min_size=1, max_size=9)


@given(flags=st.dictionaries(st.sampled_from(TOOL_FLAGS), VALUES), styles=st.lists(st.tuples(st.booleans(), st.booleans())))
def test_every_style_of_a_flag_means_the_same(flags: dict[str, str], styles: list[tuple[bool, bool]]) -> None:
    words = ["train"]
    for i, (name, value) in enumerate(flags.items()):
        two, equals = styles[i % len(styles)] if styles else (False, False)
        dashes = "-" * (1 + two)
        words += [f"{dashes}{name}={value}"] if equals else [f"{dashes}{name}", value]
    assert translate(words, ["train"]) == ["train", *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items())]


def test_two_values_for_one_flag_are_an_error() -> None:
    with pytest.raises(click.UsageError, match="-iterations 5 and --iterations 6: give one of them"):
        translate(["test", "-iterations", "5", "--iterations=6"], ["test"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "solver.prototxt", "-solver", "other.prototxt"],
            "solver.prototxt and --solver other.prototxt: give one of them",
        ),
        (["train"], "give SOLVER, or --solver FILE"),
        (["train", "-solver"], "Option '--solver' requires an argument"),
        (["time"], "give NET, or --model FILE"),
        (["test", "-model", "net.prototxt"], "give WEIGHTS, or --weights FILE"),
        (["test", "net.prototxt", "a", "-weights", "b"], "give WEIGHTS, or --weights FILE, not both"),
        (["test", "-iterations=1", "-iterations=2"], "-iterations 1 and -iterations 2: give one of them"),
        (["train", "-solver", "solver.prototxt", "-sigint_effect", "explode"], "'explode' is not one of"),
        (["time", "-model", "net.prototxt", "-solver", "solver.prototxt"], "No such option"),
    ],
)
def test_wrong_use_is_said(folder: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without PyCUDA."""
    monkeypatch.setattr("minicaffe.cuda.device._devices", {})
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "-solver", "solver.prototxt", "-gpu", "0"],
        ["test", "-model=net.prototxt", "-weights=net.caffemodel", "-gpu=all"],
        ["time", "--model=net.prototxt", "--device", "gpu"],
        ["device_query", "-gpu", "0"],
    ],
)
def test_no_gpu_is_a_clear_error(folder: Path, no_gpu: None, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    missing = f"no GPU: PyCUDA is not installed ({errors.install('gpu')}); `minicaffe doctor` says more"
    assert result.output == f"minicaffe: {missing}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu=0,1"], "--gpu 0,1: a net runs on one GPU here; give one number"),
        (["--gpu=first"], "--gpu first: give a number, or all"),
        (["--gpu=-1"], "--gpu -1: give a number, or all"),
        (["--device", "tpu"], "--device tpu: give cpu, gpu, gpu:N or auto"),
        (["--device", "cpu:1"], "--device cpu:1: give cpu, gpu, gpu:N or auto"),
        (["--device", "gpu:one"], "--device gpu:one: give cpu, gpu, gpu:N or auto"),
        (["--tf32"], "--tf32 is for a GPU: give --device gpu, or auto"),
        (["--device", "gpu", "--gpu", "1"], "--device gpu and --gpu 1: give one of them"),
    ],
)
def test_device_options_are_checked(folder: Path, options: list[str], message: str) -> None:
    result = run("time", "net.prototxt", *options)
    assert result.exit_code != 0
    assert message in result.output
    assert not gpu_mode()


def test_a_command_leaves_threads_and_modules_as_they_were(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_was_set", False)
    (folder / "mine.py").write_text("")
    before = threads.get_num_threads(), threads.is_set(), python_layers._allowed.copy(), allowed_folders.copy()
    options = ["--threads", before[0] + 1, "--allow-module", "mine"]
    result = run("time", "net.prototxt", "--iterations", 1, *options)
    assert result.exit_code == 0, result.output
    assert (threads.get_num_threads(), threads.is_set(), python_layers._allowed, allowed_folders) == before


def test_a_command_leaves_the_choice_of_a_gpu_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_device", lambda ordinal: ordinal)
    with click.Context(main):
        use_device("gpu:3", None)
        assert gpu_mode() and device._ordinal == 3
    assert not gpu_mode() and not device.is_chosen()


def test_auto_runs_on_the_cpu_and_says_so(folder: Path, no_gpu: None) -> None:
    result = run("time", "net.prototxt", "--device", "auto", "--iterations", "1")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("on the CPU: no GPU: PyCUDA is not installed")
    assert "copied an iteration" not in result.stdout
    assert run("time", "net.prototxt", "--device", "auto", "--tf32", "--iterations", "1").exit_code == 0


@pytest.mark.gpu
@pytest.mark.parametrize("options", [["--device", "auto"], ["--device", "gpu:0"], ["--gpu", "all"], ["-gpu", "0"]])
def test_time_on_a_gpu_says_what_was_copied(folder: Path, options: list[str]) -> None:
    result = run("time", "net.prototxt", *options, "--iterations", "2")
    assert result.exit_code == 0, result.output
    found = re.search(r"on (.+); copied an iteration: (\d+) bytes to the device, (\d+) bytes to the host", result.stdout)
    assert found, result.stdout
    assert found[1] == current().name
    batch = (6 * 3 + 6 * 2) * 4
    assert int(found[2]) <= batch + 64
    assert int(found[3]) <= 64
    assert not gpu_mode()


@pytest.mark.gpu
@pytest.mark.parametrize(("options", "allowed"), [([], False), (["--tf32"], True)])
def test_tf32_holds_until_the_command_is_over(
    folder: Path, options: list[str], allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def watched(*arguments: Any, **named: Any) -> None:
        seen.add(blas._state.tf32)
        blas.gemm(*arguments, **named)

    monkeypatch.setattr("minicaffe.layers.conv.inner_product.gemm", watched)
    result = run("time", "net.prototxt", "--device", "gpu", "--iterations", "1", *options)
    assert result.exit_code == 0, result.output
    assert (seen, blas._state.tf32) == ({allowed}, False)


def test_every_command_that_may_use_a_gpu_has_tf32() -> None:
    context, has = click.Context(main), set()
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        given = {option for parameter in command.params for option in parameter.opts}
        if {"--device", "device"} & given or name == "script":  # extract-features has an argument; scripts choose by themselves
            assert "--tf32" in given, name
            has.add(name)
        else:
            assert "--tf32" not in given
    assert {"classify", "detect", "evaluate", "extract-features", "features", "run", "script", "test", "time", "train"} <= has


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (
            ["extract-features", "net.caffemodel", "net.prototxt", "y", "db", 1, "lmdb", "CPU"],
            "end with the database's kind and GPU",
        ),
        (["script", "--cpu", "script.py"], "leave out --cpu"),
        (
            ["detect", "net.prototxt", "net.caffemodel", ".", "--out", "found", "--engine", "ray", "--device=cpu"],
            "give --device gpu",
        ),
    ],
)
def test_tf32_without_a_gpu(folder: Path, arguments: list[object], advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "ray" in arguments:
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    monkeypatch.setattr("minicaffe.scaling.batch.ray_cluster.require_ray", lambda: None)
    Path("script.py").write_text("raise SystemExit(3)")
    result = run(arguments[0], "--tf32", *arguments[1:])
    assert result.exit_code == 1
    assert f"--tf32 is for a GPU: {advice}" in result.output


@pytest.mark.gpu
def test_tf32_in_a_script(folder: Path) -> None:
    """In a process of its own: a script's process has NumPy's old names."""
    Path("script.py").write_text("from minicaffe.cuda import blas\nprint('allowed', blas.tf32_allowed())\n")
    for options, said in ((["--tf32"], "allowed True"), ([], "allowed False")):
        command = [sys.executable, "-m", "minicaffe", "script", *options, "script.py"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert said in done.stdout, done.stderr


@pytest.mark.gpu
def test_tf32_in_rays_workers() -> None:
    minicaffe.set_mode_cpu()
    try:
        Rules(1, gpu=True, tf32=True).apply()
        assert (gpu_mode(), blas.tf32_allowed()) == (True, True)
    finally:
        minicaffe.set_mode_cpu()
        blas.allow_tf32(False)


@pytest.mark.gpu
def test_a_number_without_a_gpu_is_an_error(folder: Path) -> None:
    result = run("time", "net.prototxt", "--device", "gpu:99")
    assert result.exit_code == 1
    assert "there is no GPU 99: the driver shows" in result.output
    assert not gpu_mode()
    result = run("time", "net.prototxt", "--device", "auto", "--iterations", "1")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("arguments", [["time", "net.prototxt"], ["test", "net.prototxt", "net.caffemodel"]])
def test_no_iterations_is_an_error(folder: Path, arguments: list[str]) -> None:
    result = run(*arguments, "-iterations", "0")
    assert result.exit_code == 1
    assert "--iterations must be at least 1, got 0" in result.output


# time, test, device-query.


def test_time_prints_as_caffe_does_and_a_table(folder: Path) -> None:
    result = run("time", "-model", "net.prototxt", "-iterations=3", "-phase", "TEST", "-stage", "means")
    assert result.exit_code == 0, result.output
    lines = messages(result.stderr)
    assert lines[0] == "Performing Forward"
    assert re.fullmatch(r"Initial loss: [\d.]+", lines[1])
    assert lines[2:5] == ["Performing Backward", "*** Benchmark begins ***", "Testing for 3 iterations."]
    assert [bool(re.fullmatch(rf"Iteration: {i + 1} forward-backward time: \S+ ms\.", lines[5 + i])) for i in range(3)] == [
        True
    ] * 3
    layers = ["data", "ip", "y_ip_0_split", "loss", "mean"]
    at = lines.index("Average time per layer: ")
    for i, (layer, way) in enumerate((layer, way) for layer in layers for way in ("forward", "backward")):
        assert re.fullmatch(rf" *{layer}\t{way}: \S+ ms\.", lines[at + 1 + i])
    assert re.match(r"      data\tforward: ", lines[at + 1])
    means = [float(re.search(r": (\S+) ms", line)[1]) for line in lines[at + 1 : at + 11]]  # type: ignore[index]
    totals = [re.fullmatch(r"(.+): (\S+) ms\.", line) for line in lines[at + 11 : at + 15]]
    assert [found[1] for found in totals if found] == [
        "Average Forward pass", "Average Backward pass", "Average Forward-Backward", "Total Time",
    ]  # fmt: skip
    forward, backward, both, total = (float(found[2]) for found in totals if found)
    np.testing.assert_allclose([sum(means[::2]), sum(means[1::2])], [forward, backward], rtol=1e-4)
    assert both >= forward + backward
    assert math.isclose(total, 3 * both, rel_tol=1e-4)
    assert lines[-1] == "*** Benchmark ends ***"
    assert "line (TEST), means of 3 iterations" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()[4:9]] == layers


def test_time_runs_train_unless_told_and_measures_a_net_without_a_loss(folder: Path) -> None:
    (folder / "scores.prototxt").write_text(
        'input: "x" input_shape { dim: 2 dim: 3 } layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"\n'
        'inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }\n'
    )
    result = run("time", "scores.prototxt", "--iterations", "2", "--seed", "5")
    assert result.exit_code == 0, result.output
    assert "scores.prototxt (TRAIN)" in result.stdout
    assert "input x not given: standard normal values of shape (2, 3) (seed 5)" in result.stderr
    assert re.search(r"ip +InnerProduct +\S+ +(?!0\.0+ )\d", result.stdout)


def test_test_prints_as_caffe_does(folder: Path) -> None:
    result = run("test", "-model", "net.prototxt", "-weights", "net.caffemodel", "-iterations", "2", "-stage=means")
    assert result.exit_code == 0, result.output
    lines = messages(result.stderr)
    assert lines[0] == "Running for 2 iterations."
    names = ["loss", *["mean"] * 6]
    batches = [re.fullmatch(r"Batch (\d), (\w+) = (\S+)", line) for line in lines[1:15]]
    assert [(found[1], found[2]) for found in batches if found] == [(str(i), name) for i in range(2) for name in names]
    values = np.array([float(found[3]) for found in batches if found]).reshape(2, 7)
    assert len(np.unique(values)) == 14
    means = [re.fullmatch(r"(\w+) = (\S+)( \(\* 2 = (\S+) loss\))?", line) for line in lines[16:]]
    np.testing.assert_allclose([float(found[2]) for found in means if found], values.mean(0), rtol=1e-4)
    assert [found[1] for found in means if found and found[3]] == ["loss"]
    loss = 2 * values[:, 0].mean()
    assert math.isclose(float(lines[15].removeprefix("Loss: ")), loss, rel_tol=1e-4)
    assert math.isclose(float(means[0][4]), loss, rel_tol=1e-4)  # type: ignore[index]
    assert f"loss: {loss:.3g}"[:9] in result.stdout
    assert result.stdout.startswith("loss = ")


def test_test_leaves_long_outputs_out_of_the_lines(folder: Path) -> None:
    (folder / "long.prototxt").write_text(
        'input: "x" input_shape { dim: 2 dim: 51 } layer { name: "y" type: "AbsVal" bottom: "x" top: "y" }\n'
    )
    result = run("test", "long.prototxt", "net.caffemodel", "--iterations", "2")
    assert messages(result.stderr) == ["Running for 2 iterations.", "Loss: 0"]
    assert "y: 102 values" in result.stdout


def test_device_query_says_what_is_there(no_gpu: None) -> None:
    result = run("device-query")
    assert result.exit_code == 0
    facts = dict(re.split(r": +", line, maxsplit=1) for line in result.output.splitlines())
    assert facts["GPU"].startswith("no GPU: PyCUDA is not installed")
    assert facts["numpy"] == np.__version__
    assert facts["cores"].startswith(f"{available_cores()} of ")
    assert run("device_query").output == result.output


@pytest.mark.gpu
def test_device_query_lists_the_gpus() -> None:
    result = run("device_query", "-gpu", "0")
    assert result.exit_code == 0, result.output
    assert re.match(rf"GPU: +0: {re.escape(current().name)}, compute capability \d+\.\d, [\d.]+ GiB", result.output)


def test_blas_name() -> None:
    assert (
        blas_name({"Build Dependencies": {"blas": {"name": "scipy-openblas", "version": "0.3.27"}}}) == "scipy-openblas 0.3.27"
    )
    assert blas_name({}) == "unknown"


# train.


def test_train_by_the_tools_flags(folder: Path) -> None:
    result = run("train", "-solver", "solver.prototxt", "-weights=net.caffemodel", "--log", "train.log")
    assert result.exit_code == 0, result.output
    lines = messages(result.stderr)
    assert lines[:3] == ["Solving line", "Learning Rate Policy: fixed", "Iteration 0, Testing net (#0)"]
    assert lines[-1] == "Optimization Done."
    assert any(re.fullmatch(r"Iteration 5 \(\S+ iter/s, \S+s/5 iters\), loss = \S+", line) for line in lines)
    assert any(re.fullmatch(r"    Train net output #0: loss = \S+ \(\* 2 = \S+ loss\)", line) for line in lines)
    assert "Iteration 15, lr = 0.1" in lines
    assert messages((folder / "train.log").read_text()) == lines
    again = run("train", "--solver=solver.prototxt", "--snapshot", "out/line_iter_8.solverstate")
    assert again.exit_code == 0, again.output
    assert "Iteration 20, loss" in again.stderr and "Iteration 5 " not in again.stderr


def test_train_takes_level_and_stage(folder: Path) -> None:
    (folder / "staged.prototxt").write_text(NET.replace('phase: TEST stage: "means"', 'stage: "means"'))
    (folder / "solver.prototxt").write_text(SOLVER.replace("net.prototxt", "staged.prototxt") + "max_iter: 1 display: 1\n")
    plain = run("train", "-solver", "solver.prototxt")
    assert plain.exit_code == 0, plain.output
    assert "output #1" not in plain.stderr
    staged = run("train", "-solver", "solver.prototxt", "-stage", "other,means")
    assert "Train net output #6: mean = " in staged.stderr
    assert "Train net output #0: deep = " in run("train", "-solver", "solver.prototxt", "-level", "2").stderr


def test_weights_take_the_place_of_the_solvers(folder: Path) -> None:
    (folder / "solver.prototxt").write_text(SOLVER + 'max_iter: 1 weights: "absent.caffemodel"\n')
    assert "absent.caffemodel" in run("train", "-solver", "solver.prototxt").output
    result = run("train", "-solver", "solver.prototxt", "-weights", "net.caffemodel")
    assert result.exit_code == 0, result.output
    both = run("train", "-solver", "solver.prototxt", "-weights", "net.caffemodel", "-snapshot", "x.solverstate")
    assert both.exit_code == 1
    assert "give one of them" in both.output


SLOW = NET.replace("dim: 6 dim: 3", "dim: 64 dim: 4000").replace("dim: 6 dim: 2", "dim: 64 dim: 2")
"""A net whose iterations take some milliseconds."""


class Training:
    """A training in a process of its own, that runs until a signal stops it; a watchdog ends it after three minutes."""

    def __init__(self, folder: Path, *flags: str, caffe: bool = False) -> None:
        (folder / "net.prototxt").write_text(SLOW)
        (folder / "solver.prototxt").write_text(SOLVER + "max_iter: 1000000 display: 1\n")
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minicaffe", *[CAFFE] * caffe, "train", "-solver", "solver.prototxt", *flags],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.watchdog = threading.Timer(180, self.process.kill)
        self.watchdog.start()

    def until(self, pattern: str) -> str:
        """Read on to the line whose message matches."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            message = (line.partition("] ")[2] or line).rstrip("\n")
            if re.search(pattern, message):
                return message
        raise AssertionError(f"no line {pattern}; the last are {self.lines[-5:]}")

    def end(self) -> tuple[int, str]:
        """Exit status, and the rest of stderr."""
        rest = self.process.communicate()[1]
        self.watchdog.cancel()
        return self.process.returncode, rest


needs_sighup = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")


@pytest.mark.slow
@needs_sighup
def test_sighup_snapshots_and_sigint_stops_with_a_snapshot(folder: Path) -> None:
    training = Training(folder)
    training.until("Iteration 3, lr")
    training.process.send_signal(signal.SIGHUP)
    training.until("^a snapshot follows this iteration$")
    first = Path(training.until("Snapshot").split()[-1])
    training.until(r"Iteration \d+, lr")
    training.process.send_signal(signal.SIGINT)
    training.until("^stopping after this iteration, with a snapshot; Ctrl-C again ends at once$")
    last = Path(training.until("Snapshot").split()[-1])
    training.until("Optimization stopped early.")
    assert training.end() == (130, "")
    assert first != last
    for model in (first, last):
        Net("net.prototxt", TEST, weights=model)
        assert model.with_suffix(".solverstate").exists()
    done = int(last.stem.rpartition("_")[2])
    resumed = run("train", "-solver", "solver.prototxt", "-snapshot", last.with_suffix(".solverstate"), "-iterations", "2")
    assert resumed.exit_code == 0, resumed.output
    assert Path(f"out/line_iter_{done + 2}.caffemodel").exists()


@needs_sighup
def test_sigterm_stops_a_training_with_a_snapshot(folder: Path) -> None:
    training = Training(folder)
    training.until("Iteration 3, lr")
    training.process.send_signal(signal.SIGTERM)
    last = Path(training.until("Snapshot").split()[-1])
    assert training.end()[0] == 143
    state = read_state(last.with_suffix(".solverstate"))
    assert state.iteration == int(last.stem.rpartition("_")[2]) >= 3
    Net("net.prototxt", TEST, weights=last)


def test_a_signal_after_the_last_iteration_is_no_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training is complete then."""
    (folder / "net.prototxt").write_text(SLOW)
    (folder / "solver.prototxt").write_text(SOLVER + "max_iter: 2\n")
    solve = train._show_progress

    def then_signal(*given: Any) -> None:
        solve(*given)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train, "_show_progress", then_signal)
    result = run("train", "solver.prototxt")
    assert result.exit_code == 0, result.output
    assert Path("out/line_iter_2.caffemodel").exists()


@needs_sighup
def test_the_command_caffe_ends_a_stopped_training_with_0(folder: Path) -> None:
    training = Training(folder, caffe=True)
    training.until("Iteration 2, lr")
    training.process.send_signal(signal.SIGINT)
    training.until("Optimization stopped early.")
    assert training.end()[0] == 0


@pytest.mark.slow
@needs_sighup
def test_the_effects_of_signals_can_be_chosen(folder: Path) -> None:
    training = Training(folder, "-sigint_effect=snapshot", "-sighup_effect", "stop")
    training.until("Iteration 2, lr")
    training.process.send_signal(signal.SIGINT)
    training.until("Snapshot")
    training.until(r"Iteration \d+, lr")
    training.process.send_signal(signal.SIGHUP)
    training.until("Optimization stopped early.")
    assert training.end() == (0, "")


# Logs.

LOG = """\
unrelated first line
I1231 23:59:58.500000  7 caffe.cpp:1] Using CPU
I1231 23:59:59.000000  7 solver.cpp:1] Solving LeNet
I1231 23:59:59.250000  7 solver.cpp:2] Iteration 0, Testing net (#0)
I1231 23:59:59.500000  7 solver.cpp:3]     Test net output #0: accuracy = 0.125
I1231 23:59:59.500000  7 solver.cpp:3]     Test net output #1: loss = 2.5 (* 1 = 2.5 loss)
I0101 00:00:00.000000  7 solver.cpp:4] Iteration 0 (-0 iter/s, 0.3s/100 iters), loss = 2.25
I0101 00:00:00.000000  7 solver.cpp:5]     Train net output #0: loss = 2.25 (* 1 = 2.25 loss)
I0101 00:00:00.000000  7 sgd_solver.cpp:6] Iteration 0, lr = 0.01
a line without a prefix: Iteration 77
I0101 00:00:10.000000  7 solver.cpp:4] Iteration 100 (10 iter/s, 10s/100 iters), loss = 1e-2
I0101 00:00:10.000000  7 solver.cpp:5]     Train net output #0: loss = nan (* 1 = nan loss)
I0101 00:00:10.000000  7 sgd_solver.cpp:6] Iteration 100, lr = 1e-3
I0101 00:00:20.000000  7 solver.cpp:2] Iteration 200, Testing net (#0)
I0101 00:00:20.000000  7 solver.cpp:3]     Test net output #0: accuracy = 0.75
I0101 00:00:20.000000  7 solver.cpp:3]     Test net output #1: loss = 1.5 (* 1 = 1.5 loss)
"""


def test_parse_log_by_hand(folder: Path) -> None:
    (folder / "run.log").write_text(LOG)
    result = run("parse-log", "run.log", ".")
    assert result.exit_code == 0, result.output
    assert "written: run.log.train (2 rows)" in result.output
    assert (folder / "run.log.train").read_text() == (
        "NumIters,Seconds,LearningRate,loss\n0.0,1.0,0.01,2.25\n100.0,11.0,0.01,nan\n"
    )
    assert (folder / "run.log.test").read_text() == (
        "NumIters,Seconds,LearningRate,accuracy,loss\n0.0,0.5,0.001,0.125,2.5\n200.0,21.0,0.001,0.75,1.5\n"
    )


def test_parse_log_reads_what_train_logs(folder: Path) -> None:
    log = run("train", "-solver", "solver.prototxt").stderr
    (folder / "train.log").write_text(log)
    train, test = parse_log("train.log")
    assert [row["NumIters"] for row in train] == [0, 5, 10, 15]
    assert [row["NumIters"] for row in test] == [0, 10, 20]
    assert all(row["LearningRate"] == 0.1 for row in train + test)
    assert all(row["Seconds"] >= 0 for row in train)
    losses = re.findall(r"Train net output #0: loss = (\S+)", log)
    assert [row["loss"] for row in train] == [float(text) for text in losses]
    write_rows("rows.csv", test, ";")
    with open("rows.csv", encoding="utf-8") as file:
        assert [float(row["loss"]) for row in csv.DictReader(file, delimiter=";")] == [row["loss"] for row in test]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("iteration 3: loss 5\n", [], "run.log: not a log of Caffe: no line has an iteration"),
        (
            LOG.replace("Iteration 200", "Iteration " + "1" * 5000),
            [],
            "run.log:14: an iteration cannot have 5,000 digits",
        ),
        (LOG.replace("Iteration 200", "Iteration " + "1" * 400), [], "run.log:14: an iteration cannot have 400 digits: 1111"),
        (LOG, ["--delimiter", "ab"], '--delimiter must be one character, got "ab"'),
    ],
)
def test_parse_log_errors(folder: Path, text: str, arguments: list[str], message: str) -> None:
    (folder / "run.log").write_text(text)
    result = run("parse-log", "run.log", ".", *arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "absent.log: no such file" in run("parse-log", "absent.log", ".").output


def test_a_name_in_a_table_is_no_formula(folder: Path) -> None:
    write_rows("rows.csv", [{'=HYPERLINK("http://a")': 1.0, "@a": 2.0, "loss=1": 3.0}])
    assert (folder / "rows.csv").read_text() == '"\'=HYPERLINK(""http://a"")",\'@a,loss=1\n1.0,2.0,3.0\n'


def test_parse_log_of_a_file_from_another_age(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive may give a file any time; here the file system's own limit is passed by."""
    (folder / "run.log").write_text(LOG)
    expected = parse_log("run.log")
    stat = os.stat("run.log")
    late = os.stat_result((*stat[:7], 10**13, 10**13, 10**13))
    monkeypatch.setattr(Path, "stat", lambda path, **options: late)
    assert [[row["Seconds"] for row in rows] for rows in parse_log("run.log")] == [
        [row["Seconds"] for row in rows] for rows in expected
    ]


def test_parse_log_writes_no_table_without_outputs(folder: Path) -> None:
    (folder / "run.log").write_text(LOG.replace("Test net", "Other"))
    assert "no test outputs in run.log" in run("parse-log", "run.log", ".").output
    assert not (folder / "run.log.test").exists()


# Caffe's other tools, and its command names.


def test_upgrade_tools_by_their_names(folder: Path) -> None:
    (folder / "old.txt").write_text(
        'input: "x" input_dim: 1 input_dim: 3 input_dim: 5 input_dim: 4\n'
        'layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "ip" inner_product_param { num_output: 7 } }\n'
    )
    assert run("upgrade_net_proto_text", "old.txt", "new.txt").exit_code == 0
    assert 'type: "InnerProduct"' in (folder / "new.txt").read_text()
    (folder / "old_solver.txt").write_text('net: "old.txt" solver_type: ADAM base_lr: 0.5\n')
    assert run("upgrade_solver_proto_text", "old_solver.txt", "new_solver.txt").exit_code == 0
    assert 'type: "Adam"' in (folder / "new_solver.txt").read_text()
    (folder / "net.caffemodel").rename(folder / "weights.bin")
    result = run("upgrade_net_proto_binary", "weights.bin", "new.bin")
    assert result.output == "written: new.bin (3 layers)\n"
    Net("net.prototxt", TEST, weights="new.bin")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
def test_the_caffe_command_is_installed_on_request(folder: Path) -> None:
    bin_folder = folder / "my tools"
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    done = python("-m", "minicaffe.install_caffe_command", str(bin_folder), PATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"written: {bin_folder / 'caffe'}" in done.stdout
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    caffe = subprocess.run(["caffe", "device_query"], env=environment, capture_output=True, text=True, check=False)
    assert caffe.returncode == 0, caffe.stderr
    assert caffe.stdout.startswith("GPU:")
    (folder / "s.txt").write_text('net: "n" solver_type: SGD\n')
    words = ["upgrade_solver_proto_text", "s.txt", "t.txt"]
    assert subprocess.run(words, env=environment, capture_output=True, check=False).returncode == 0
    assert 'type: "SGD"' in (folder / "t.txt").read_text()
    removed = python("-m", "minicaffe.install_caffe_command", str(bin_folder), "--remove")
    assert removed.returncode == 0, removed.stderr
    assert list(bin_folder.iterdir()) == []


@pytest.mark.slow
def test_another_caffe_is_left_alone(folder: Path) -> None:
    mine = {install(folder / "bin")[0]}
    assert mine < set(install(folder / "bin"))
    (folder / "bin" / "upgrade_net_proto_text").write_text("another's")
    for remove in (False, True):
        with pytest.raises(Error, match="upgrade_net_proto_text: there is another program of this name; nothing was changed"):
            install(folder / "bin", remove=remove)
    assert all(path.exists() for path in mine)
    assert (folder / "bin" / "upgrade_net_proto_text").read_text() == "another's"
    done = python("-m", "minicaffe.install_caffe_command", str(folder / "bin"))
    assert done.returncode == 1
    assert "another program" in done.stderr


def test_a_caffe_elsewhere_on_the_path_is_said(folder: Path) -> None:
    done = python("-m", "minicaffe.install_caffe_command", str(folder / "bin"), PATH="")
    assert done.returncode == 0, done.stderr
    assert f"note: on your PATH, caffe is not found; put {folder / 'bin'} first on it" in done.stderr


def test_caffes_other_tools_are_commands_here() -> None:
    assert set(scripts("python", windows=False)) == {"caffe", *TOOLS}
    for tool in TOOLS:
        result = run(tool, "--help")
        assert result.exit_code == 0 and result.output.startswith("Usage: ")


def test_the_scripts_text() -> None:
    made = scripts("/it's/python", windows=False)
    assert made["caffe"] == f"#!/bin/sh\n# written by {MARK}\nexec '/it'\\''s/python' -m minicaffe --caffe \"$@\"\n"
    assert scripts(r"C:\python.exe", windows=True)["caffe.cmd"].endswith('@"C:\\python.exe" -m minicaffe --caffe %*\r\n')
