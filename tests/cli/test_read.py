"""minicaffe read: greedy CTC, of scores and of a CTCGreedyDecoder's labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe.cli import main
from minicaffe.detection.reading import read_text
from minicaffe.errors import Error

NET = """input: "data" input_shape { dim: 2 dim: 3 dim: 1 dim: 6 }
layer { name: "score" type: "Transpose" bottom: "data" top: "score" transpose_param { dim: 3 dim: 0 dim: 1 dim: 2 } }
"""
"""A net that reads colours, a column a time step: the class is the brightest channel of blue, green, red."""
DECODER = """layer { name: "time" type: "ContinuationIndicator" bottom: "data" top: "time"
  continuation_indicator_param { time_step: 6 axis: 0 } }
layer { name: "flat" type: "Reshape" bottom: "score" top: "flat" reshape_param { shape { dim: 6 dim: -1 dim: 3 } } }
layer { name: "text" type: "CTCGreedyDecoder" bottom: "flat" bottom: "time" top: "text" %s }
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["read", *(str(word) for word in words), "--random-weights", "--mean", "0,0,0"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A picture that is, in time, green green blue green red red."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    Path("last.prototxt").write_text(NET + DECODER % "")
    Path("first.prototxt").write_text(NET + DECODER % "ctc_decoder_param { blank_index: 0 }")
    photo = np.zeros((1, 6, 3), np.uint8)
    photo[0, range(6), [1, 1, 2, 1, 0, 0]] = 200
    Image.fromarray(photo).save("photo.png")
    return tmp_path


@pytest.mark.parametrize(
    ("net", "words", "text"),
    [
        ("net.prototxt", (), "aab"),
        ("net.prototxt", ("--blank", "last"), "bab"),
        ("last.prototxt", (), "bab"),
        ("first.prototxt", (), "aab"),
    ],
)
def test_the_text_of_an_image(folder: Path, net: str, words: tuple[str, ...], text: str) -> None:
    result = run(net, "photo.png", "--alphabet", "ab", *words)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"photo.png: {text}\n"
    found = json.loads(run(net, "photo.png", "--alphabet", "ab", *words, "--json").stdout)
    assert found == [{"image": "photo.png", "text": text}]


def test_an_alphabet_in_a_file(folder: Path) -> None:
    Path("alphabet.txt").write_text(" \né\n", encoding="utf-8")
    assert run("net.prototxt", "photo.png", "--alphabet-file", "alphabet.txt").stdout == "photo.png:   é\n"
    Path("alphabet.txt").write_bytes(b"\xff\xfe\xff")
    assert "not a text file" in run("net.prototxt", "photo.png", "--alphabet-file", "alphabet.txt").stderr
    Path("alphabet.txt").write_bytes(b"")
    assert "no characters" in run("net.prototxt", "photo.png", "--alphabet-file", "alphabet.txt").stderr


def test_errors(folder: Path) -> None:
    assert "10 characters, but the net has 3 classes" in run("net.prototxt", "photo.png").stderr
    beyond = run("last.prototxt", "photo.png", "--alphabet", "a").stderr
    assert "1 characters, but the net reads class 1: give the characters that the net" in beyond
    assert "does not hold a score" in run("net.prototxt", "photo.png", "--blob", "data", "--alphabet", "ab").stderr
    Path("image.prototxt").write_text(NET.replace('"Transpose"', '"ReLU"').split(" transpose_param")[0] + " }")
    assert "no output that holds scores through time" in run("image.prototxt", "photo.png").stderr


def test_scores_that_spell_nothing() -> None:
    scores = np.array([[0.9, 0.1], [0.8, 0.2]])
    assert read_text(scores, "a") == ""
    with pytest.raises(Error, match="NaN or infinite"):
        read_text(scores * np.nan, "a")
    with pytest.raises(Error, match="the blank is class 2"):
        read_text(scores, "a", blank=2)
