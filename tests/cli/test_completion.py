"""--install-completion: the file of each shell, and what the Tab key then offers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from minicaffe.cli import main

FILES = {
    "bash": ".local/share/bash-completion/completions/minicaffe",
    "zsh": ".zfunc/_minicaffe",
    "fish": ".config/fish/completions/minicaffe.fish",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="the shells of Unix")
@pytest.mark.parametrize("shell", FILES)
def test_each_shells_file(home: Path, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    result = CliRunner().invoke(main, ["--install-completion", shell])
    file = home / FILES[shell]
    assert result.exit_code == 0 and result.stdout.startswith(f"written: {file}\n"), result.output
    assert "_MINICAFFE_COMPLETE" in file.read_text()
    file.unlink()
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert CliRunner().invoke(main, ["--install-completion"]).exit_code == 0 and file.is_file()


def test_other_shells_and_folders_that_cannot_be_written(home: Path) -> None:
    result = CliRunner().invoke(main, ["--install-completion", "tcsh"])
    assert result.exit_code == 2 and "--install-completion tcsh: give one of bash, zsh, fish" in result.stderr
    (home / ".config").write_text("")
    result = CliRunner().invoke(main, ["--install-completion", "fish"])
    assert result.exit_code == 2 and "--install-completion fish: " in result.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dete", [("plain", "detect")]),
        ("detect --thr", [("plain", "--threshold"), ("plain", "--threads")]),
        ("detect tes", [("file", "tes")]),
        ("detect a b --cfg x", [("file", "x")]),
        ("train s --sigint-effect s", [("plain", "stop"), ("plain", "snapshot")]),
    ],
)
def test_what_the_tab_key_offers(words: str, offered: list[tuple[str, str]]) -> None:
    *given, incomplete = words.split()
    found = BashComplete(main, {}, "minicaffe", "_MINICAFFE_COMPLETE").get_completions(given, incomplete)
    assert [(item.type, item.value) for item in found] == offered
