"""Messages name only options that the running command has."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import minicaffe
from minicaffe import TEST, Net, errors
from minicaffe.cli import COMMANDS, main
from minicaffe.errors import Error, in_brackets, offering, ways
from minicaffe.formats.prototxt import parse_net

PACKAGE = Path(minicaffe.__file__).parent
OPTION = re.compile(r"(?<!\S)[\[(`]?(--[a-z][a-z-]+)")
OF_COMMANDS = {
    "files.py": COMMANDS,
    "limits.py": COMMANDS,
    "data/image_check.py": ("train",),
    "detection/data_inputs.py": (),  # its callers give the hint, or have the options
    "porting/cut": ("cut",),
    "porting/deploy.py": ("deploy",),
    "porting/onnx/whole.py": ("export",),
    "porting/onnx_import": ("import",),
    "porting/rescue_inputs.py": ("rescue",),
    "porting/retarget": ("retarget",),
    "pycaffe": (),
    "scaling/batch": ("detect",),
    "scaling/in_flight.py": ("detect", "evaluate", "extract-features", "features"),
    "scaling/mpi": ("train",),
    "tracing/film": ("train",),
    "tracing/live": ("live",),
    "tracing/tours.py": ("trace",),
    "tracing/trace_facts.py": ("trace",),
}
"""Modules whose messages only these commands print, and so may name their options outright."""
ANOTHER = re.compile(r"`minicaffe |\b(minicaffe|train|explain) .*--")
"""Advice that names the command too."""


def options(name: str) -> set[str]:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return {option for param in command.params for option in param.opts}


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings and no arguments of ways or in_brackets."""
    for node in ast.iter_child_nodes(tree):
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called in ("ways", "in_brackets") or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            for part in node.values:
                if not isinstance(part, ast.Constant):
                    yield from texts(part)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        else:
            yield from texts(node)


@pytest.mark.slow
def test_advice_names_an_option_through_ways_or_of_its_only_commands() -> None:
    known = set().union(*map(options, COMMANDS))
    lacking = []
    for folder in (".", "layers", "cuda"):  # links in a checkout, which rglob does not follow
        for path in (PACKAGE / folder).rglob("*.py"):
            place, source = path.relative_to(PACKAGE), path.read_text()
            if place.parts[0] == "cli" or str(place).startswith(("porting/folder/", "formats/fork_page.py", "starters/")):
                continue  # a command's own module; a page, a report and a README on other commands
            if not re.search("--[a-z]", source):
                continue  # to parse all modules takes a second
            own = next((names for start, names in OF_COMMANDS.items() if str(place).startswith(start)), None)
            for line, text in texts(ast.parse(source)):
                named = set() if ANOTHER.search(text) or text in known else known.intersection(OPTION.findall(text))
                if (named and own is None) or any(not named <= options(name) for name in own or ()):
                    lacking.append(f"{place}:{line}: {text}")
    assert not lacking


def messages() -> Iterator[str]:
    """Messages of the engine that name options, of nets that any command may open."""
    data = 'input: "x" input_shape {{ dim: 1 dim: 1 dim: 4 dim: 4 }} layer {{ name: "l" bottom: "x" top: "y" {} }}'
    rules = 'layer { name: "d" type: "DummyData" top: "x" include { phase: TRAIN } }\n'
    rules += 'layer { name: "l" type: "ReLU" bottom: "x" top: "y" }'
    nets = {
        "allow_module": data.format('type: "Python" python_param { module: "no_such" layer: "One" }'),
        "allow_module(": data.format(
            'type: "Python" python_param { module: "spatial_dropout" layer: "SpatialDropoutLayer" param_str: "odd: 3" }'
        ),
        "strict": data.format('type: "Pooling" pooling_param { kernel_size: 2 no_such_field: 3 }'),
        "fork": 'input: "a" input_shape { dim: 2 dim: 2 dim: 3 } input: "b" input_shape { dim: 2 dim: 2 } '
        'layer { name: "l" type: "CTCGreedyDecoder" bottom: "a" bottom: "b" top: "c" }',
        "phase": rules,
        "level": rules.replace("phase: TRAIN", "min_level: 3"),
    }
    for said, text in nets.items():
        with pytest.raises(Error) as caught:
            Net(parse_net(text, warn=False), TEST)
        assert said in str(caught.value)
        yield str(caught.value)


@pytest.mark.usefixtures("only_built_in")
@pytest.mark.parametrize("name", COMMANDS)
def test_messages_name_the_options_of_the_command(name: str) -> None:
    with offering(options(name)):
        for message in messages():
            assert set(OPTION.findall(message)) <= options(name), message


@pytest.fixture
def only_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicaffe.layers.python.python._allowed", set())  # a script allows every module


@pytest.mark.usefixtures("only_built_in")
def test_a_program_may_use_either_way() -> None:
    named = set().union(*(OPTION.findall(message) for message in messages()))
    assert named == {"--allow-module", "--skip-unknown", "--fork", "--phase", "--level", "--stage"}


def test_a_script_is_not_told_of_an_option_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicaffe.layers.python.python._allowed", set())
    monkeypatch.setattr("minicaffe.files._allowed", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("n.prototxt").write_text('layer { name: "l" type: "Python" top: "y" python_param { module: "no.such" layer: "One" } }')
    Path("s.py").write_text("import caffe\ncaffe.Net('n.prototxt', caffe.TEST)\n")
    result = CliRunner().invoke(main, ["script", "s.py"])
    assert result.exit_code == 1
    assert "cannot import the Python module \"no.such\": No module named 'no'" in result.stderr
    assert "--" not in result.stderr
    assert errors._options is None  # for the next command, and the program


def test_ways() -> None:
    with offering(["--this"]):
        assert ways("--this one", "fork=", "--that") == "--this one, or fork="
        assert (in_brackets("--that"), in_brackets("give --this")) == ("", " (give --this)")
        with offering([]):
            assert ways("--this") == ""
        assert ways("--this") == "--this"
