"""The options of the commands: each shared one declared once, one object for each command, and what the groups do."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from minicaffe import Net, cli
from minicaffe.cli import COMMANDS, command_of, main
from minicaffe.cli.options import argument, option, with_options
from minicaffe.mode import TEST

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 4 dim: 6 } } }
layer { name: "y" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }
"""
OWN = {
    ("train", "--seed"), ("convert-imageset", "--seed"), ("convert-annoset", "--seed"), ("draw", "--phase"),
    *(("train-alternating", flag) for flag in ("--seed", "--check", "--weights")), ("explain", "--backward"),
    ("compare", "--weights"), ("trace-diff", "--weights"), ("rescue", "--check"), ("train", "--check"),
    ("trace", "--backward"), ("export", "--mean"),
    *((name, flag) for flag in ("--mean", "--scale-factor") for name in ("pose", "flow", "trace", "trace-diff", "live")),
    *((name, flag) for flag in ("--mean", "--scale-factor") for name in ("detect", "evaluate", "features")),
}  # fmt: skip
"""Options of one command that only share a name with others', or that have their own default."""
SHARED = (
    "--phase --seed --level --stage --fork --allow-module --device --threads --cfg --mean --scale-factor --input --shape"
    " --weights --backward --model --check --skip-unknown"
).split()


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        yield name, command_of(name)


@pytest.mark.parametrize("flag", SHARED)
def test_a_shared_option_has_one_help_text(flag: str) -> None:
    helps = {
        param.help
        for name, command in commands()
        for param in command.params
        if isinstance(param, click.Option) and flag in param.opts and (name, flag) not in OWN
    }
    assert len(helps) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_function_of_one_object_and_short(name: str) -> None:
    called = inspect.unwrap(command_of(name).callback)  # type: ignore[arg-type]
    function = ast.parse(inspect.getsource(called)).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert len(function.args.args) <= 1 and not function.args.kwonlyargs
    assert function.end_lineno is not None and function.end_lineno - function.lineno < 40


@dataclass(frozen=True, kw_only=True)
class Base:
    heading: ClassVar[str] = "Sizes"
    size: int = option("-s --size", "Pixels.", default=3)
    kind: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    files: tuple[str, ...] = argument()
    names: tuple[str, ...] = option("--name", "Names.")
    loud: bool = option("--loud", "Loud.")
    rate: float | None = option("--rate", "Rate.", heading="Speed")
    kind: str = option("--kind", "Kind.", default="own")


def test_the_annotations_decide() -> None:
    seen = []
    command = with_options(Options)(seen.append)
    assert [param.name for param in command.params] == ["files", "names", "loud", "rate", "kind", "size"]
    result = CliRunner().invoke(command, ["a", "b", "--name", "x", "--name=y", "--loud", "-s", "5", "--rate", "0.5"])
    assert result.exit_code == 0, result.output
    assert seen == [Options(files=("a", "b"), names=("x", "y"), loud=True, rate=0.5, kind="own", size=5)]
    assert CliRunner().invoke(command, []).exit_code == 0
    assert seen[1] == Options(files=(), names=(), loud=False, rate=None, kind="own", size=3)
    assert CliRunner().invoke(command, ["--size", "many"]).exit_code == 2


HELP = """
Options:
  --name TEXT       Names.
  --loud            Loud.
  --kind TEXT       Kind.  [default: own]

Speed:
  --rate X          Rate.

Sizes:
  -s, --size N      Pixels.  [default: 3]

All commands:
  --allow PATH|URI"""


def test_help_lists_the_options_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "command_of", lambda name: with_options(Options)(print))
    assert HELP in CliRunner().invoke(main, ["train", "--help"]).output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "settings.yml").write_text("PIXEL_MEANS: [[[1, 2, 3]]]\n")
    Image.new("RGB", (6, 4), (30, 20, 10)).save(tmp_path / "plain.png")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "mean"),
    [(["--cfg", "settings.yml"], [9, 18, 27]), (["--cfg", "settings.yml", "--mean", "4,4,4"], [6, 16, 26])],
)
def test_the_means_of_a_run_come_from_cfg_and_mean(folder: Path, options: list[str], mean: list[float]) -> None:
    result = CliRunner().invoke(main, ["run", "net.prototxt", "--input", "x=plain.png", "--out", "y.npz", *options])
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load("y.npz")["y"], 2 * np.reshape(mean, (1, 3, 1, 1)) * np.ones((1, 3, 4, 6)))


def test_test_takes_a_shape_a_mean_and_a_factor(folder: Path) -> None:
    Net("net.prototxt", TEST).save("net.caffemodel")
    image = ["--input", "x=plain.png", "--shape", "x=1,3,2,3", "--mean", "0,0,0", "--scale-factor", "0.5"]
    result = CliRunner().invoke(main, ["test", "net.prototxt", "net.caffemodel", "--iterations", "1", *image])
    assert result.exit_code == 0, result.output
    values = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("y[")]
    assert values == ["10"] * 6 + ["20"] * 6 + ["30"] * 6
