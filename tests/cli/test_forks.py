"""minicaffe forks."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from minicaffe.cli import main
from minicaffe.formats.forks import fork_fields, forks


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
