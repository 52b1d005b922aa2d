"""minicaffe reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from minicaffe.cli import main, reference


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reference, "CLONE", tmp_path)
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    for name in ("index", "trace", "layers/index", "layers/ROIPooling", "commands/trace"):
        path = tmp_path / "build" / "site" / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<title>page</title>")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "page"), [([], "index"), (["ROIPooling"], "layers/ROIPooling"), (["trace"], "trace"), (["index"], "index")]
)
def test_the_page_opens(clone: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], page: str) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    address = (clone / "build" / "site" / f"{page}.html").as_uri()
    done = CliRunner().invoke(main, ["docs", *words])
    assert (done.exit_code, done.stdout, opened) == (0, f"{address}\n", [address])
    assert CliRunner().invoke(main, ["docs", *words, "--no-browser"]).stdout == f"{address}\n" and len(opened) == 1


def test_what_is_missing_is_said(clone: Path) -> None:
    done = CliRunner().invoke(main, ["docs", "RoiPooling"])
    assert done.exit_code == 1 and 'no page is called "RoiPooling"; did you mean ROIPooling?' in done.stderr
    (clone / "build" / "site" / "index.html").unlink()
    said = CliRunner().invoke(main, ["docs"])
    assert said.exit_code == 1 and "the site is not built: pip install -e" in said.stderr
    assert str(clone / "docs" / "README.md") in said.stderr
    (clone / "mkdocs.yml").unlink()
    assert "this installation has none" in CliRunner().invoke(main, ["docs"]).stderr
