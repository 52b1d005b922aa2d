"""minicaffe docs and forks."""

from __future__ import annotations

import json
import re
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from minicaffe.cli import main, reference
from minicaffe.formats.forks import fork_fields, forks


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reference, "CLONE", tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "build.py").write_text("")
    for name in ("index", "trace", "layers/index", "layers/ROIPooling", "commands/trace", "ten-minutes/index"):
        path = tmp_path / "build" / "site" / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<title>page</title>")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ([], "index"),
        (["ROIPooling"], "layers/ROIPooling"),
        (["trace"], "trace"),
        (["index"], "index"),
        (["ten-minutes"], "ten-minutes/index"),
    ],
)
def test_the_page_is_served(clone: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], page: str) -> None:
    """The browser gets the page from a server on this machine alone; Ctrl-C ends the command without an error."""
    served: list[str] = []

    def look(server: ThreadingHTTPServer) -> None:
        thread = Thread(target=server.handle_request)
        thread.start()
        with urlopen(f"http://{server.server_name}:{server.server_port}/{page}.html") as answer:
            served.append(answer.read().decode())
        thread.join()
        assert server.server_address[0] == "127.0.0.1"
        raise KeyboardInterrupt

    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", look)
    done = CliRunner().invoke(main, ["docs", *words])
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{opened[0]}\n", ""), done.output
    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/{page}\.html", opened[0])
    assert served == ["<title>page</title>"]
    quiet = CliRunner().invoke(main, ["docs", *words, "--no-browser"])
    assert quiet.stdout.startswith("http://127.0.0.1:") and len(opened) == 1


def test_what_is_missing_is_said(clone: Path) -> None:
    done = CliRunner().invoke(main, ["docs", "RoiPooling"])
    assert done.exit_code == 1 and 'no page is called "RoiPooling"; did you mean ROIPooling?' in done.stderr
    (clone / "build" / "site" / "index.html").unlink()
    said = CliRunner().invoke(main, ["docs"])
    assert said.exit_code == 1 and "the site is not built: pip install -e" in said.stderr
    assert str(clone / "docs" / "README.md") in said.stderr
    (clone / "site" / "build.py").unlink()
    assert "this installation has no documentation: clone" in CliRunner().invoke(main, ["docs"]).stderr


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
    assert "    DenseImageDataParameter: mean_file\n        is subtracted from the images\n" in output
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
