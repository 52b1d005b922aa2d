"""The watch over this machine's raylet, without Ray: a socket stands for it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from minicaffe.scaling.batch.ray_cluster import reported
with reported({path!r}):
    {inside}
"""


def run(path: Path, inside: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE.format(path=str(path), inside=inside)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="sockets of Unix")
@pytest.mark.parametrize("inside", ["raise ValueError", "raise KeyboardInterrupt"])
def test_an_error_that_comes_before_rays_end_is_the_dead_raylets(tmp_path: Path, inside: str) -> None:
    ended = run(tmp_path / "nobody", inside)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert ended.stderr.startswith("minicaffe: the Ray process of this machine (raylet) died, and ended the run")


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="sockets of Unix")
def test_other_errors_and_a_normal_end_are_not_reported(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(tmp_path / "s"))
        raylet.listen()
        ended = run(tmp_path / "s", "raise ValueError('mine')")
        assert (
            ended.returncode == 1
            and "ValueError: mine" in ended.stderr
            and "raylet" not in ended.stderr.replace("ray_cluster", "")
        )
        normal = run(tmp_path / "s", "pass")
        assert (normal.returncode, normal.stderr) == (0, "")
