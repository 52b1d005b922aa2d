"""The files that other programs read of the project: they agree with setup.cfg, and name what is there."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from minicaffe.cli import COMMANDS, main
from minicaffe.cli.doctor import without_folders
from minicaffe.version import __version__

ROOT = Path(__file__).resolve().parents[1]
OTHERS = (ROOT / name for name in (".pre-commit-config.yaml", "CITATION.cff", "conda/meta.yaml"))
YAML = sorted([*ROOT.glob(".github/**/*.yml"), *OTHERS])

if not (ROOT / "CITATION.cff").is_file():
    pytest.skip("not a checkout of the repository", allow_module_level=True)


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_they_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_pythons() -> None:
    """The workflow's Pythons are claimed, and the oldest is the one that setup.cfg requires."""
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    claimed = set(re.findall(r"Python :: (3\.\d+)$", text, re.M))
    tested = read(".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert set(tested) <= claimed
    assert setup()["options"]["python_requires"] == f">={min(claimed, key=lambda v: int(v[2:]))}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert claimed == set(re.findall(r"3\.\d+", readme.partition("tested with")[2].partition(" on ")[0]))


def test_versions() -> None:
    assert read("CITATION.cff")["version"] == read("conda/meta.yaml")["package"]["version"] == __version__


def test_the_recipe_needs_what_setup_cfg_needs() -> None:
    needed = {}
    for line in setup()["options"]["install_requires"].split("\n"):
        if name := re.match(r"[a-z0-9]+", line):
            needed.setdefault(name[0], []).append(line.partition(";")[0])
    recipe = {line.split()[0]: line for line in read("conda/meta.yaml")["requirements"]["run"]}
    assert set(recipe) == {"python", *needed}
    for name, lines in needed.items():
        most = {bound for line in lines for bound in re.findall(r"<[\d.]+", line)}
        assert set(re.findall(r"<[\d.]+", recipe[name])) == most, name


def test_extras_exist() -> None:
    extras = set(setup()["options.extras_require"])
    for name in ("Dockerfile", ".devcontainer/devcontainer.json", ".github/workflows/tests.yml", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        named = {extra for found in re.findall(r"(?:\.|whl\)|minicaffe)\[([a-z0-9,-]+)\]", text) for extra in found.split(",")}
        assert named and named <= extras, name


def test_the_dev_container() -> None:
    assert "minicaffe" in json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))["name"]


def test_the_issue_forms_ask_for_what_there_is() -> None:
    forms = [read(f".github/ISSUE_TEMPLATE/{name}.yml") for name in ("bug", "model")]
    for form in forms:
        assert all(part["type"] in ("textarea", "input") and part["attributes"]["label"] for part in form["body"])
    named = set(re.findall(r"`minicaffe ([a-z]+)", json.dumps(forms)))
    assert {"doctor", "summary", "port"} <= named <= set(COMMANDS)


def test_the_report_is_ready_to_paste() -> None:
    result = CliRunner().invoke(main, ["doctor", "--report"])
    assert result.exit_code == 0 and result.stdout.startswith("```text\nminicaffe ") and result.stdout.endswith("```\n")
    assert "numpy " in result.stdout and str(Path.home()) + "/" not in result.stdout and str(ROOT) not in result.stdout


def test_folders_are_left_out() -> None:
    assert without_folders("at /home/me/x/nvcc: 13, 3/4 of it") == "at .../nvcc: 13, 3/4 of it"
    assert without_folders(r"C:\Users\me\cuda.dll is there") == ".../cuda.dll is there"


def test_the_workflows_run_what_contributors_run() -> None:
    for name, command in (("tests", "bash .ci/run"), ("tests", "python -m pytest"), ("nightly", "bash .ci/full")):
        jobs = read(f".github/workflows/{name}.yml")["jobs"].values()
        assert any(command in step.get("run", "") for job in jobs for step in job["steps"]), command
        assert command in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_step_of_the_full_checks_is_a_function() -> None:
    text = (ROOT / ".ci" / "full").read_text(encoding="utf-8")
    listed = re.findall(r'^    "(\w+): ', text, re.M)
    assert listed == re.findall(r"^full_(\w+)\(\)", text, re.M) and len(listed) > 15


@pytest.mark.skipif(not shutil.which("git") or not (ROOT / ".git").exists(), reason="not a clone with git")
def test_no_two_files_differ_in_capitals_alone() -> None:
    """They would be one file on macOS and Windows."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    assert len({name.lower() for name in names}) == len(names) > 500
