"""Images by patterns, and folders of folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from detecting import detect, make_folder

from minicaffe import files
from minicaffe.errors import Error
from minicaffe.files import pattern_folder
from minicaffe.scaling.batch.find import find_sources


@pytest.fixture
def nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A detector, and photos in folders: a/0.png, a/b/1.png, c/2.png and a text."""
    monkeypatch.setattr(files, "_allowed", set())
    make_folder(tmp_path, count=4)
    for k, folder in enumerate(("a", "a/b", "c")):
        (tmp_path / "nested" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / f"{k}.png").rename(tmp_path / "nested" / folder / f"{k}.png")
    (tmp_path / "nested" / "a" / "notes.txt").write_text("none")
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("nested/*/*.png", ["a/0.png", "c/2.png"]),
        ("nested/**", ["a/0.png", "a/b/1.png", "c/2.png"]),
        ("nested/**/[01].png", ["a/0.png", "a/b/1.png"]),
        ("nested/?/2.png", ["c/2.png"]),
    ],
)
def test_patterns(pattern: str, found: list[str], nested: Path) -> None:
    assert list(find_sources([pattern]).names()) == [f"nested/{name}" for name in found]


def test_what_is_there_is_no_pattern(nested: Path) -> None:
    Path("nested/a/0.png").rename("odd[1].png")
    assert list(find_sources(["odd[1].png"]).names()) == ["odd[1].png"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nested/*.png", "nested/*.png: no file matches"),
        ("nested/a/*.txt", "no images in this folder"),
        ("nested", 'no images in this folder; "nested/**" takes those of the folders in it'),
        ("gone.png", "gone.png: no such file"),
    ],
)
def test_nothing_found(source: str, said: str, nested: Path) -> None:
    with pytest.raises(Error) as error:
        find_sources([source])
    assert said in str(error.value)


def test_detect_reads_what_a_pattern_names_elsewhere(nested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line names the folder before the first wildcard."""
    for name in ("detector.prototxt", "detector.caffemodel", "boxes.npy", "names.txt"):
        (nested / name).rename(nested / "inside" / name)
    monkeypatch.chdir("inside")
    result = detect(f"{nested}/nested/**/*.png")
    assert result.exit_code == 0 and result.stdout.count("detection") == 3, result.output


def test_the_folder_of_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pattern_folder("*.png") == "." and pattern_folder("a/b*/c.png") == "a" and pattern_folder("/x/*/y") == "/x"
    assert pattern_folder("a.png") is None and pattern_folder("s3://bucket/*.png") is None
