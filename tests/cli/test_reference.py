"""minicaffe docs and forks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minicaffe.cli import main, reference
from minicaffe.formats.forks import fork_fields, forks


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


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["forks", *arguments])


def test_all_forks_in_80_columns() -> None:
    lines = run().output.splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert heads == [f"{fork.name}: {fork.title} ({fork.repository})" for fork in forks().values()]


@pytest.mark.parametrize("name", ["segnet", "SegNet", "alexgkendall/caffe-segnet"])
def test_one_fork(name: str) -> None:
    output = run(name).output
    assert output.startswith("segnet: SegNet (alexgkendall/caffe-segnet)\n  changes the numbers, and is not built\n")
    assert "    DropoutParameter: sample_weights_test\n        drops values in the test phase too (harmless: false)\n" in output
    assert "  honoured\n" in output and "upsample_param" in output and "PSPNet" not in output


def test_json() -> None:
    found = json.loads(run("--json").output)
    assert [fork["name"] for fork in found] == list(forks())
    listed = {(field["message"], field["name"], field["value"]) for fork in found for field in fork["fields"]}
    assert listed == {(field.message, field.name, field.value) for field in fork_fields()}
    (intel,) = json.loads(run("intel", "--json").output)
    fields = {field["name"]: (field["effect"], field["harmless"]) for field in intel["fields"]}
    assert fields["avg_include_pad"] == ("honoured", [])
    changing = [harmless for effect, harmless in fields.values() if effect == "changes the numbers, and is not built"]
    assert any(changing)


def test_an_unknown_fork() -> None:
    result = run("segnett")
    said = 'no fork is called "segnett": did you mean segnet? `minicaffe forks` lists all'
    assert result.exit_code == 1 and said in result.output
    assert "`minicaffe forks` lists all" in run("zzzzzzzz").output
