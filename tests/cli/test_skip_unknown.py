"""--skip-unknown: what each command that makes a net says of a field that minicaffe lacks, with it and without."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click import Context, Option
from click.testing import CliRunner, Result
from detecting import DETECTOR
from fork_table import use_table
from PIL import Image

from minicaffe import Net, set_random_seed
from minicaffe.cli import COMMANDS, main
from minicaffe.formats.prototxt import parse_net, read_net
from minicaffe.formats.skipped import drop_notes
from minicaffe.mode import TEST

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { kernel_size: 2 fork_quiet: 1
  fork_loud: 2 zzz: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ip" top: "loss" }
"""
REFUSED = "minicaffe: Pooling layer \"pool\": PoolingParameter has no field fork_loud: it belongs to A's Caffe and B's Caffe"
AT_THE_END = (
    "WARNING: left out, though the numbers may depend on them: "
    "PoolingParameter.fork_loud (net.prototxt:4), PoolingParameter.zzz (net.prototxt:4)"
)
NO_NET = {
    "compute-image-mean",
    "convert-annoset",
    "convert-imageset",
    "docs",
    "doctor",
    "dump",
    "film",
    "forks",
    "import",
    "layers",
    "new",
    "parse-log",
    "port",
}
KEEP_ALL_FIELDS = {"retarget": "edits the text", "rescue": "reads a .caffemodel"}

pytestmark = pytest.mark.filterwarnings("default::minicaffe.errors.PrototxtWarning")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    use_table(monkeypatch)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 snapshot_after_train: false'
    )
    (tmp_path / "other.prototxt").write_text(re.sub("fork_loud.*", "} }", NET))
    (tmp_path / "script.py").write_text('import caffe\nprint(caffe.Net("net.prototxt", caffe.TEST).outputs)\n')
    Net("other.prototxt", TEST).save("net.caffemodel")
    return tmp_path


def test_every_command_that_makes_a_net_has_the_option() -> None:
    having = set()
    for name in COMMANDS:
        command = main.get_command(Context(main), name)
        assert command
        having |= {name for param in command.params if isinstance(param, Option) and "--skip-unknown" in param.opts}
    assert set(COMMANDS) - having == NO_NET | set(KEEP_ALL_FIELDS)


@pytest.mark.parametrize(
    "words",
    [
        ("summary", "net.prototxt"),
        ("run", "net.prototxt", "net.caffemodel"),
        ("draw", "net.prototxt", "-o", "out.svg", "--shapes"),
        ("time", "net.prototxt", "--iterations", "1"),
        ("trace", "net.prototxt", "net.caffemodel", "--text"),
        ("explain", "net.prototxt", "pool", "--at", "0,0,0,0"),
        ("test", "net.prototxt", "net.caffemodel", "--iterations", "1"),
        ("compare", "other.prototxt", "net.prototxt", "--weights", "net.caffemodel"),
        ("trace-diff", "net.prototxt", "net.prototxt", "--weights", "net.caffemodel"),
        ("merge-bn", "net.prototxt", "net.caffemodel", "-o", "o.prototxt", "o.caffemodel"),
        ("train", "solver.prototxt"),
    ],
)
def test_refused_or_said_again_at_the_end(folder: Path, words: tuple[str, ...]) -> None:
    refused = run(*words)
    assert refused.exit_code == 1
    assert "PoolingParameter has no field fork_loud: it belongs to A's Caffe and B's Caffe" in refused.stderr
    assert "(net.prototxt:4)\nhint: strict=False, or --skip-unknown, leaves it out" in refused.stderr
    assert refused.stderr.startswith(REFUSED)
    done = run(words[0], "--skip-unknown", *words[1:])
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert any(line.startswith("WARNING: net.prototxt:4: PoolingParameter has no field zzz; skipped") for line in lines)
    assert lines[-1] == AT_THE_END
    assert run(*words).exit_code == 1  # the option holds for one command


@pytest.mark.slow
def test_a_script_that_makes_such_a_net(folder: Path) -> None:
    """In a process of its own, which a script changes; with the true table, which has none of the three fields."""

    def run_script(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "minicaffe", "script", *options, "script.py"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    refused = run_script()
    assert refused.returncode == 1 and "PoolingParameter has no field fork_quiet" in refused.stderr
    done = run_script("--skip-unknown")
    assert done.returncode == 0 and "['loss']" in done.stdout
    assert done.stderr.splitlines()[-1] == AT_THE_END.replace(": Pool", ": PoolingParameter.fork_quiet (net.prototxt:3), Pool")


def test_said_also_after_an_error(folder: Path) -> None:
    result = run("run", "net.prototxt", "net.caffemodel", "--skip-unknown", "--input", "data=gone.npy")
    assert result.exit_code == 1 and AT_THE_END in result.stderr


def test_nothing_is_said_of_a_net_without_such_fields(folder: Path) -> None:
    assert run("summary", "other.prototxt", "--skip-unknown").stderr == ""


def test_draw_without_shapes_computes_nothing(folder: Path) -> None:
    result = run("draw", "net.prototxt", "-o", "out.svg")
    assert result.exit_code == 0 and result.stderr == ""


def test_upgrade_loses_nothing_that_matters(folder: Path) -> None:
    result = run("upgrade", "net.prototxt", "new.prototxt")
    assert result.exit_code == 1 and not Path("new.prototxt").exists()
    assert result.stderr.startswith("minicaffe: net.prototxt:4:3: PoolingParameter has no field fork_loud")
    result = run("upgrade", "net.prototxt", "new.prototxt", "--skip-unknown")
    assert result.exit_code == 0 and result.stderr.endswith(AT_THE_END + "\n")
    whole = parse_net(NET, warn=False).param
    drop_notes(whole)
    assert read_net("new.prototxt").param == whole
    Path("solver.prototxt").write_text('net: "net.prototxt" base_rl: 0.1')
    result = run("upgrade", "--solver", "solver.prototxt", "new.prototxt")
    assert result.exit_code == 1 and "SolverParameter has no field base_rl; the nearest is base_lr" in result.stderr


def test_train_is_refused_for_the_solvers_fields(folder: Path) -> None:
    text = Path("solver.prototxt").read_text()
    Path("solver.prototxt").write_text(text.replace("net.p", "other.p") + "\nfork_loud: true fork_quiet: 1 fork_loud: 2\n")
    result = run("train", "solver.prototxt")
    assert result.exit_code == 1
    assert result.stderr.startswith("minicaffe: solver.prototxt:2:31: SolverParameter has no field fork_loud: it belongs to")
    result = run("train", "solver.prototxt", "--skip-unknown")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1].endswith(": SolverParameter.fork_loud (solver.prototxt:2)")


def test_detect_says_so_in_json_too(folder: Path) -> None:
    set_random_seed(1)
    Path("detector.prototxt").write_text(DETECTOR)
    Net("detector.prototxt", TEST).save("detector.caffemodel")
    Image.fromarray(np.zeros((48, 72, 3), np.uint8)).save("one.png")
    np.save("boxes.npy", np.array([[3.0, 4, 40, 30]]))
    words = ("detect", "detector.prototxt", "detector.caffemodel", "one.png", "--proposals", "boxes.npy", "--json")
    words = (*words, "--threshold", "0")
    assert "skipped" not in json.loads(run(*words).stdout)[0]
    Path("detector.prototxt").write_text(DETECTOR.rstrip() + "\nzzz: 1\n")
    refused = run(*words)
    assert refused.exit_code == 1 and "NetParameter has no field zzz" in refused.stderr
    done = run(*words, "--skip-unknown")
    line = len(DETECTOR.rstrip().split("\n")) + 1
    named = f"NetParameter.zzz (detector.prototxt:{line})"
    assert json.loads(done.stdout)[0]["skipped"] == [named]
    assert done.stderr.splitlines()[-1].endswith(named)
