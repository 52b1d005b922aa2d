"""--engine mpi where mpi4py or the MPI library is not there, and options that go with it."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from minicaffe.cli import main
from minicaffe.errors import install


@pytest.fixture
def solver(tmp_path):
    path = tmp_path / "solver.prototxt"
    path.write_text('net_param { } base_lr: 1 lr_policy: "fixed"')
    return str(path)


def test_without_mpi4py_the_error_says_what_to_install(solver, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    done = CliRunner().invoke(main, ["train", solver, "--engine", "mpi"])
    assert done.exit_code == 1
    assert f"--engine mpi needs mpi4py and an MPI: {install('mpi')}" in done.output


def test_a_timeout_without_the_engine_is_an_error(solver):
    done = CliRunner().invoke(main, ["train", solver, "--timeout", "5"])
    assert done.exit_code == 2
    assert "--timeout goes with --engine mpi" in done.output


def test_a_timeout_of_nothing_is_an_error(solver):
    done = CliRunner().invoke(main, ["train", solver, "--engine", "mpi", "--timeout", "0"])
    assert done.exit_code == 2
    assert "0" in done.output and "--timeout" in done.output
