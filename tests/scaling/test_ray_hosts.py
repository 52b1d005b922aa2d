"""Detection on Ray over two hosts with addresses of their own: the same files, and what a cut link does."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from detecting import ARGUMENTS, make_folder
from two_hosts import ADDRESSES, Hosts, search_path, two_hosts

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
if find_spec("ray") is None:  # an import takes seconds, and only the processes that the tests start need it
    pytest.skip("Ray is not installed", allow_module_level=True)
RAY = shutil.which("ray", path=search_path())
if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
    pytest.skip("hosts of network namespaces need Linux, root and ip", allow_module_level=True)

COUNT = 40
HEAD = f"{ADDRESSES[0]}:6379"
SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",  # a lost host is found after some 6 s; as Ray comes, 65
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
OF_ITS_OWN = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Before the second host's command: processes that end with it, and the only ones that it sees: a driver looks for its
host's raylet among them."""
LAYER = """
import os
import socket
import time
import minicaffe

class Slow(minicaffe.Layer):
    num_bottom, num_top = 1, 1

    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward_cpu(self, bottom, top):
        with open("hosts", "a") as file:
            file.write(socket.gethostname() + " ")
        time.sleep(0.2)
        if os.path.exists("hold-" + socket.gethostname()):
            open("held", "w").close()
            while os.path.exists("hold-" + socket.gethostname()):
                time.sleep(0.02)
        top[0].data[...] = bottom[0].data
"""
LAYER_TEXT = 'layer { name: "k" type: "Python" bottom: "data" top: "seen" python_param { module: "slow" layer: "Slow" } }\n'
IMPATIENT = "from minicaffe.scaling.batch import ray_cluster; ray_cluster.LOST = 4; from minicaffe.cli import main; main()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector that takes its time, says where it is, and can be held there; pictures; and, in `wanted`, what one process
    finds on them."""
    path = tmp_path_factory.mktemp("hosts")
    make_folder(path, COUNT)
    shutil.copyfile(path / "photos" / "2.png", path / "photos" / "3.png")  # which is no image there
    text = (path / "detector.prototxt").read_text().replace('bottom: "data"', 'bottom: "seen"', 1)
    (path / "detector.prototxt").write_text(text.replace("layer {", f"{LAYER_TEXT}layer {{", 1))
    (path / "slow.py").write_text(LAYER)
    subprocess.run([*detect("wanted"), "--threads", "1"], cwd=path, check=True, capture_output=True, timeout=60)
    return path


def detect(out: str, *options: str, python: tuple[str, ...] = ("-m", "minicaffe")) -> list[str]:
    command = [sys.executable, *python, *ARGUMENTS, "photos", "--out", out]
    return [*command, "--part-size", "1", "--allow-module", "slow", *options]


def on_ray(out: str, **more: tuple[str, ...]) -> list[str]:
    return detect(out, "--engine", "ray", "--workers", "2", "--address", HEAD, **more)


def ray_start(which: int, temp: Path) -> list[str]:
    how = ["--head", "--port", "6379", "--include-dashboard", "false"] if which == 0 else ["--address", HEAD]
    room = ["--num-cpus", "1", "--object-store-memory", "80000000"]
    place = ["--node-ip-address", ADDRESSES[which], "--temp-dir", str(temp / "ab"[which])]
    return [str(RAY), "start", *how, *room, *place]


@contextmanager
def head_and_host(folder: Path) -> Iterator[tuple[Hosts, Path]]:
    """Two hosts, the first with a Ray of one CPU; and a folder with a short name, as Ray's sockets need it."""
    with TemporaryDirectory(prefix="mc-", dir="/tmp", ignore_cleanup_errors=True) as name:
        try:
            pair = two_hosts(folder)
            hosts = pair.__enter__()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        try:
            run = hosts.start(0, *ray_start(0, Path(name)), env=os.environ | SETTINGS, stdout=subprocess.DEVNULL)
            assert run.wait(timeout=120) == 0
            yield hosts, Path(name)
        finally:
            pair.__exit__(None, None, None)


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("part-*.parquet")}


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


@pytest.mark.slow
def test_the_parts_of_a_host_that_is_cut_off_are_done_on_the_other(folder: Path) -> None:
    """A run over both hosts, then one in which the link is cut over a part: the files are those of one process."""
    with head_and_host(folder) as (hosts, temp):
        options = {"cwd": folder, "env": os.environ | SETTINGS, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
        quiet = options | {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        other = hosts.start(1, *OF_ITS_OWN, *ray_start(1, temp), "--block", **quiet)
        wait_for_nodes(hosts, options)
        (folder / "hosts").write_text("")
        stdout, stderr = hosts.start(0, *on_ray("both"), **options).communicate(timeout=240)
        assert "2 workers on Ray, CPU\n" in stdout, stderr
        assert set((folder / "hosts").read_text().split()) == set(hosts.names)
        assert parts(folder / "both") == parts(folder / "wanted")
        run = hosts.start(0, *on_ray("cut"), **options)
        wait_for(lambda: len(parts(folder / "cut")) >= 10)
        hold = folder / f"hold-{hosts.names[1]}"
        hold.touch()
        wait_for((folder / "held").exists)  # in the midst of a part
        hosts.cut()
        hold.unlink()
        stdout, stderr = run.communicate(timeout=240)
    other.wait(timeout=60)
    assert run.returncode == 0, stderr
    assert stdout.startswith(f"cut: {COUNT} images in {COUNT} parts\n")
    assert re.search(r"^part \d+ was repeated: its worker died$", stderr, re.M), stderr
    assert parts(folder / "cut") == parts(folder / "wanted")


def wait_for_nodes(hosts: Hosts, options: dict[str, object]) -> None:
    """Until the cluster has both."""
    code = (
        "import time; from minicaffe.scaling.batch.ray_cluster import connected\n"
        f"with connected({HEAD!r}, 0) as ray:\n    while len(ray.nodes()) < 2: time.sleep(0.1)"
    )
    run = hosts.start(0, sys.executable, "-c", code, **options)
    _, stderr = run.communicate(timeout=120)
    assert run.returncode == 0, stderr


def test_a_run_that_is_cut_off_from_the_head_ends_with_an_error(folder: Path) -> None:
    """The run continues on other hosts."""
    with head_and_host(folder) as (hosts, temp):
        script = f'{" ".join(ray_start(1, temp))} > /dev/null 2>&1 && "$@"'
        words = [*OF_ITS_OWN, "sh", "-c", script, "sh", *on_ray("off", python=("-c", IMPATIENT))]
        options = {"cwd": folder, "env": os.environ | SETTINGS, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
        run = hosts.start(1, *words, **options)
        wait_for(lambda: len(parts(folder / "off")) >= 10)
        hosts.cut()
        _, stderr = run.communicate(timeout=120)
    assert run.returncode == 1
    assert f"minicaffe: Ray at {HEAD} has not answered for 4 s: finished parts stay, and" in stderr
    assert 10 <= len(parts(folder / "off")) < COUNT
    subprocess.run([*detect("off"), "--threads", "1"], cwd=folder, check=True, capture_output=True, timeout=60)
    assert parts(folder / "off") == parts(folder / "wanted")
