"""Messages of errors and warnings: cut where a name in a file has no end."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest

from minicaffe.data.image_bytes import read_image
from minicaffe.errors import (
    DataError,
    Error,
    LayerError,
    PrototxtError,
    PrototxtWarning,
    WeightsError,
    on_one_line,
    os_errors_as,
    pasted,
    shortened,
)
from minicaffe.formats.prototxt import parse_net, read_net
from minicaffe.formats.weights import read_weights
from minicaffe.net import Net

LONG = "n" * 1_000_000
INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'


def test_a_word_is_cut_in_its_middle() -> None:
    got = shortened(f'the layer "{"a" * 700}{"b" * 700}" is')
    assert got == f'the layer "{"a" * 499}...(402 characters more)...{"b" * 499}" is'


def test_what_can_be_read_is_left() -> None:
    for text in ("no layer", "/a/long/path" * 80, "a word " * 2000):
        assert shortened(text) == text


def test_a_long_list_is_cut() -> None:
    got = shortened("name, " * 10_000)
    assert got.startswith("name, " * 1000) and got.endswith("name, " * 1000)
    assert "...(40,000 characters more)..." in got and len(got) < 20_040


def test_control_characters_are_written_out() -> None:
    assert shortened("a\x1b[31mred\x07 \x9b5m\r\n\tb") == "a\\x1b[31mred\\x07 \\x9b5m\\x0d\n\tb"
    assert str(Error("layer \x1b]0;title\x07")) == "layer \\x1b]0;title\\x07"


@pytest.mark.parametrize(
    "text",
    [
        f'layer {{ name: "{LONG}" type: "ROIPooling" bottom: "x" top: "y" }}',
        f'layer {{ name: "a" type: "ReLU" bottom: "{LONG}" top: "y" }}',
        f'layer {{ name: "a" type: "{LONG}" top: "y" }}',
        f'layer {{ name: "a" type: "Python" top: "y" python_param {{ module: "{LONG}" layer: "x" }} }}',
        f'{INPUT}layer {{ name: "a" type: "Pooling" bottom: "x" top: "y" pooling_param {{ pool: {LONG} }} }}',
        f'name: "{LONG}\\001"',
    ],
)
def test_long_names_of_a_prototxt(text: str) -> None:
    with pytest.raises(Error) as raised:
        Net(parse_net(text), 1)
    assert len(str(raised.value)) < 5000


def test_an_unknown_field_is_warned_of_shortly() -> None:
    with pytest.warns(PrototxtWarning) as warned:
        parse_net(f"{LONG}: 3")
    assert len(str(warned[0].message)) < 3000


def test_the_parts_of_a_prototxts_error_are_cut_too() -> None:
    error = PrototxtError(LONG, file=LONG, line=3, column=4, source_line="x: 3", hint=LONG)
    assert max(map(len, (error.message, error.file, error.hint))) < 1100
    assert str(error).endswith(f"hint: {error.hint}")


def test_errors_are_pickled() -> None:
    assert str(pickle.loads(pickle.dumps(LayerError("a layer")))) == "a layer"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    "word",
    ["a b", "a\nb", "x'y\t\\z", "\x1bcafe", "\x85x", "\u202eabc", os.fsdecode(b"a\xffb"), "\U000e0001z", "\x07'", "a"],
)
def test_a_pasted_word_is_the_same_to_a_shell(word: str) -> None:
    quoted = pasted(word)
    assert on_one_line(quoted) == quoted
    ran = subprocess.run(
        ["bash", "-c", f"printf %s {quoted}"], check=True, capture_output=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert os.fsdecode(ran.stdout) == word


def test_a_missing_file_has_one_message(tmp_path: Path) -> None:
    """It names a close match in the folder, or the missing folder."""
    (tmp_path / "test.prototxt").write_text("")
    with pytest.raises(PrototxtError, match=r"tset\.prototxt: no such file; did you mean test\.prototxt\?$"):
        read_net(tmp_path / "tset.prototxt")
    with pytest.raises(WeightsError, match=r"w\.caffemodel: no such file; there is no folder .*absent$"):
        read_weights(tmp_path / "absent" / "w.caffemodel")
    with pytest.raises(DataError, match=r"photo\.jpg: no such file$"):
        read_image(tmp_path / "photo.jpg")
    with (
        pytest.raises(Error, match=r"a\.txt: cannot be written: No such file"),
        os_errors_as(Error, "a.txt: cannot be written"),
    ):
        (tmp_path / "absent" / "a.txt").write_text("")
