"""Detection on Ray: the same files whatever the number of workers, a killed worker, a run that is stopped, too little room.

One Ray of two CPUs for the whole module, but for the test that starts one as the command line does.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from detecting import ARGUMENTS, detect, finished, make_folder

from minicaffe.cli import main
from minicaffe.errors import Error, install
from minicaffe.scaling.batch import ray_cluster
from minicaffe.scaling.batch.ray_cluster import no_stderr, quiet
from minicaffe.scaling.batch.ray_engine import Pool, pool

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what Ray imports
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    pytest.importorskip("ray.data")
psutil = pytest.importorskip("psutil", reason="psutil finds Ray's processes")

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",  # files and sockets that Ray leaves to the garbage collector
    "ignore::pytest.PytestUnraisableExceptionWarning",
    r"ignore:`use_\w+` is deprecated:DeprecationWarning",  # Ray Data's, of options of its own
    r"ignore::DeprecationWarning:ray[.].*",
)

COUNT = 24
NOWHERE = ("photos", "--out", "nowhere", "--engine", "ray", "--address")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of two CPUs on this machine."""
    quiet()
    with warnings.catch_warnings(), no_stderr():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector and its pictures, and what one process finds on them, three a part, in `wanted`."""
    path = tmp_path_factory.mktemp("ray")
    make_folder(path, COUNT)
    before = os.getcwd()
    os.chdir(path)
    try:
        result = detect("photos", "--out", "wanted", "--part-size", 3, "--threads", 1)
    finally:
        os.chdir(before)
    assert finished(result), result.output
    return path


@pytest.fixture
def inside(folder: Path, cluster: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("part-*.parquet")}


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_files_are_those_of_one_process(inside: Path, workers: int) -> None:
    """Bit for bit, a bad image among them; two actors on two CPUs do not wait for each other, nor do five."""
    result = detect("photos", "--out", f"on{workers}", "--part-size", 3, "--engine", "ray", "--workers", workers)
    assert finished(result), result.output
    assert "24 images in 8 parts\n" in result.stdout
    assert "1 error, " in result.stdout
    assert result.stdout.endswith(f"{workers} worker{'s' * (workers > 1)} on Ray, CPU\n")
    assert parts(inside / f"on{workers}") == parts(inside / "wanted")
    assert len(parts(inside / "wanted")) == 8


def test_no_more_workers_than_parts(inside: Path) -> None:
    result = detect("photos", "--out", "whole", "--engine", "ray", "--workers", 2)
    assert result.stdout.startswith("whole: 24 images in 1 part\n")
    assert result.stdout.endswith(", 1 worker on Ray, CPU\n")


LAYER = """
import os
import signal
from pathlib import Path
import minicaffe

class Killer(minicaffe.Layer):
    num_bottom, num_top = 1, 1

    def setup(self, bottom, top):
        self.deadly, self.times = map(int, self.param.python_param.param_str.split())

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward_cpu(self, bottom, top):
        top[0].data[...] = bottom[0].data
        if bottom[0].data.shape[3] == self.deadly:
            with open("deaths", "a+") as file:
                file.seek(0)
                if len(file.read()) < self.times:
                    file.write("+")
                    file.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
"""
DEADLY = 5
"""The image killing: 5.png, the twentieth by name."""


def detect_with_killer(folder: Path, out: str, times: int, *options: object) -> Result:
    """detect with a net that kills its process this many times when it sees the image DEADLY."""
    (folder / "killer.py").write_text(LAYER)
    (folder / "deaths").write_text("")
    width = round((70 + DEADLY) * 100 / (48 + 2 * DEADLY))
    layer = (
        'layer { name: "k" type: "Python" bottom: "data" top: "seen" '
        f'python_param {{ module: "killer" layer: "Killer" param_str: "{width} {times}" }} }}'
    )
    text = (folder / "detector.prototxt").read_text().replace('bottom: "data"', 'bottom: "seen"', 1)
    (folder / "killer.prototxt").write_text(text.replace("layer {", f"{layer}\nlayer {{", 1))
    arguments = [*ARGUMENTS, "photos", "--out", out, "--part-size", 2, "--allow-module", "killer", *options]
    arguments[1] = "killer.prototxt"
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def told(stderr: str) -> str:
    """The output to stderr, without the preprocessing and the progress lines of a slow machine."""
    return re.sub(r"^(\d+ of \d+ images, |Preprocessing: ).*\n", "", stderr, flags=re.M)


def test_a_killed_worker_loses_and_doubles_nothing(inside: Path) -> None:
    """It dies over an image, by SIGKILL; modules and working directory are the workers' too."""
    result = detect_with_killer(inside, "killed", 1, "--engine", "ray", "--workers", 2)
    assert finished(result), result.output
    assert (inside / "deaths").read_text() == "+"
    assert result.stdout.startswith(f"killed: {COUNT} images in 12 parts\n{COUNT} images in ")
    assert len(result.stdout.splitlines()) == 2
    assert told(result.stderr).startswith("part 9 was repeated: its worker died\nminicaffe: photos/3.png: ")
    assert finished(detect_with_killer(inside, "alone", 0, "--threads", 1))
    assert parts(inside / "killed") == parts(inside / "alone")
    assert len(parts(inside / "killed")) == 12


@pytest.mark.slow
def test_a_part_that_kills_its_workers_is_given_up(inside: Path) -> None:
    result = detect_with_killer(inside, "some", 99, "--engine", "ray", "--workers", 2)
    assert result.exit_code == 1
    assert (inside / "deaths").read_text() == "++++"
    assert "part 9 (images 18 to 19) killed 4 actors" in told(result.stderr)
    assert len(told(result.stderr).splitlines()) == 1
    assert "part-00009.parquet" not in parts(inside / "some")


def test_a_gpu_where_there_is_none(inside: Path) -> None:
    result = detect("photos", "--out", "gpu", "--engine", "ray", "--device", "gpu")
    assert result.exit_code == 1
    assert told(result.stderr) == "minicaffe: --device gpu: the Ray cluster has no GPU\n"
    assert "Ray assigns the GPUs" in detect("photos", "--out", "x", "--engine", "ray", "--device", "gpu:1").stderr


def test_an_error_of_the_workers_is_one_line(inside: Path) -> None:
    (inside / "full").mkdir()
    (inside / "full" / "part-00000.parquet").mkdir()
    result = detect("photos", "--out", "full", "--engine", "ray", "--workers", 1)
    assert result.exit_code == 1
    assert "full/part-00000.parquet: cannot be written: " in result.stderr
    assert len(told(result.stderr).splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "status", "when"), [(signal.SIGINT, 130, "gcs_server"), (signal.SIGTERM, 143, "ray::MapWorker")]
)
def test_a_stop_while_ray_starts(inside: Path, number: int, status: int, when: str) -> None:
    """When a process of this name is there: one line, as later, and nothing is left of Ray."""
    command = [sys.executable, "-m", "minicaffe", *ARGUMENTS, "photos", "--out", f"early{number}", "--engine", "ray"]
    process = subprocess.Popen([*command, "--part-size", "1"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: any(when in command for command in commands(process.pid)))
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    assert stdout == ""
    assert told(stderr).startswith("stopped with ")
    assert told(stderr).count("\n") == 1
    wait_for(lambda: not [child for child in started if child.is_running() and child.status() != "zombie"], 30)


def commands(pid: int) -> Iterator[str]:
    """Of all processes below one."""
    for child in psutil.Process(pid).children(recursive=True):
        try:
            yield " ".join(child.cmdline())
        except psutil.Error:
            continue


def test_a_run_that_is_stopped_ends_at_once_and_goes_on(inside: Path) -> None:
    """As from a terminal, with a new Ray, which leaves nothing behind."""
    out = inside / "stopped"
    command = [sys.executable, "-m", "minicaffe", *ARGUMENTS, "photos", "--out", "stopped", "--part-size", "1"]
    command += ["--engine", "ray", "--scale", "700"]
    process = subprocess.Popen([*command, "--max-size", "1400"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(out.glob("part-*.parquet"))) >= 2)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == ""
    assert told(stderr).count("\n") == 1
    assert " parts done; run the same command to continue\n" in stderr
    assert len(started) > 3
    wait_for(lambda: not [child for child in started if child.is_running() and child.status() != "zombie"], 30)
    done = len(parts(out))
    assert told(stderr).startswith(f"stopped with {done} of {COUNT} parts")
    assert 2 <= done < COUNT
    options = ["--part-size", 1, "--scale", 700, "--max-size", 1400]
    result = detect("photos", "--out", "stopped", *options, "--engine", "ray")
    assert f"{COUNT} parts, {done} of which were there" in result.stdout
    assert result.exit_code == 1 and "minicaffe: photos/3.png: " in result.stderr, result.output
    assert finished(detect("photos", "--out", "unstopped", *options, "--threads", 1))
    assert parts(out) == parts(inside / "unstopped")


@pytest.mark.slow
def test_a_dead_raylet_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's core then ends the process: with one line, and the same command resumes."""
    monkeypatch.chdir(folder)
    command = [sys.executable, "-m", "minicaffe", *ARGUMENTS, "photos", "--out", "orphan", "--part-size", "1"]
    command += ["--engine", "ray", "--scale", "700", "--max-size", "1400"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: parts(folder / "orphan"))
    raylet = next(child for child in psutil.Process(process.pid).children() if child.name() == "raylet")
    raylet.kill()
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert stdout == ""
    said = (
        "minicaffe: the Ray process of this machine (raylet) died, and ended the run: finished parts stay, and the same command"
    )
    assert told(stderr) == f"{said} resumes the run\n"


def test_no_cluster_at_the_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    refused = told(detect(*NOWHERE, "127.0.0.1:1").stderr)
    left = "if a crashed cluster left this address behind, run `ray stop`"
    assert refused == f"minicaffe: Ray at 127.0.0.1:1 cannot be reached: Connection refused; {left}\n"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert told(detect(*NOWHERE, "auto").stderr) == refused


@pytest.mark.parametrize("content", [None, "127.0.0.1:1\n", "nothing"])
def test_the_address_file_of_a_dead_cluster(
    content: str | None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a crash leaves it; ray.init would wait in it, deaf to signals."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("it would hang"))
    monkeypatch.setattr("psutil.process_iter", lambda *_: iter(()))  # no raylet runs here
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    if content is not None:
        (tmp_path / "ray" / "ray_current_cluster").write_text(content)
    result = detect(*NOWHERE, "auto")
    assert result.exit_code == 1
    assert re.match(r"minicaffe: Ray at \S+ cannot be reached: ", told(result.stderr))
    assert ("run `ray stop`" in result.stderr) == (content == "127.0.0.1:1\n")


STUCK = """
import sys, time
import ray
from minicaffe.cli import main
from minicaffe.scaling.batch import ray_cluster

def init(**_):
    open("joining", "w").close()
    time.sleep(600)

ray.init, ray_cluster.check_answers, ray_cluster.JOINING = init, lambda _: None, float(sys.argv[1])
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("number", "seconds", "status"), [(signal.SIGINT, 600, 130), (signal.SIGTERM, 600, 143), (None, 0.1, 1)]
)
def test_joining_that_hangs(
    number: int | None, seconds: float, status: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at a signal, or after a while with an error."""
    monkeypatch.chdir(folder)
    Path("joining").unlink(missing_ok=True)
    command = [sys.executable, "-c", STUCK, str(seconds), *ARGUMENTS, *NOWHERE, "127.0.0.1:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(Path("joining").exists)
        if number:
            process.send_signal(number)
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == status
    stderr = told(stderr)
    assert stderr.startswith("stopped with 0 of 1 parts done" if number else "minicaffe: Ray at 127.0.0.1:1: no Ray of this")
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_something_else_at_the_address(said: bytes | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is silent, says something, or (None) hangs up."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster, "ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as thread:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        run = thread.submit(detect, "photos", "--out", "nowhere", "--engine", "ray", "--address", address)
        with server.accept()[0] as connection:
            if said is not None:
                connection.sendall(said)
                run.exception(timeout=30)
        assert told(run.result(30).stderr) == f"minicaffe: Ray at {address} cannot be reached: what listens there is not Ray\n"


def test_without_ray_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "ray", None)
    result = detect("photos", "--out", "none", "--engine", "ray")
    assert result.stderr == f"minicaffe: --engine ray needs Ray: {install('ray')}\n"


@pytest.mark.parametrize(
    ("cpus", "workers", "threads", "wanted"),
    [
        ([2], None, 1, Pool(2, 0.9, 0)),
        ([2], 1, 1, Pool(1, 0.9, 0)),
        ([1], None, 1, Pool(1, 0.9, 0)),
        ([8, 8, 4], None, 4, Pool(5, 3.6, 0)),
        ([3], None, 2, Pool(1, 1.8, 0)),
        ([0, 8], None, 1, Pool(8, 0.9, 0)),
        ([1], None, 4, Pool(1, 0.8236, 0)),
        ([2], 3, 1, Pool(3, 0.5905, 0)),
    ],
)
def test_the_size_of_the_pool(cpus: list[float], workers: int | None, threads: int, wanted: Pool) -> None:
    assert pool([{"CPU": cpu} for cpu in cpus], workers, threads, gpu=False) == wanted


@pytest.mark.parametrize("cpus", [[1], [2], [2, 1], [16] * 3])
def test_any_number_of_actors_fits_and_leaves_something(cpus: list[float]) -> None:
    for workers in (1, 2, 3, 7, 20):
        found = pool([{"CPU": cpu} for cpu in cpus], workers, 1, gpu=False)
        fit = [int(0.91 * cpu / found.cpus) for cpu in cpus]  # with a hundredth for rounding to Ray's 0.0001
        assert found.size == workers <= sum(fit)


def test_gpus_are_what_counts_where_they_are_used() -> None:
    nodes = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 16.0}, {"CPU": 1.0, "GPU": 4.0}]
    assert pool(nodes, None, 1, gpu=True) == Pool(6, 0.225, 1.0)
    assert pool(nodes, 3, 1, gpu=True).size == 3


@pytest.mark.parametrize(
    ("nodes", "workers", "gpu", "said"),
    [
        ([{}], None, False, r"the Ray cluster has no room for 1 actor \(1 node with 0 CPUs and 0 GPUs\)"),
        ([{"CPU": 2.0}], 500, False, r"no room for 500 actors \(1 node with 2 CPUs and 0 GPUs\)"),
        ([{"CPU": 2.0}, {"CPU": 3.0}], 1, True, r"no GPU for an actor \(2 nodes with 5 CPUs and 0 GPUs\)"),
    ],
)
def test_no_room(nodes: list[dict[str, float]], workers: int | None, gpu: bool, said: str) -> None:
    with pytest.raises(Error, match=said):
        pool(nodes, workers, 1, gpu)


def test_the_images_are_not_all_alike(folder: Path) -> None:
    """What is compared above differs from image to image."""
    import pyarrow.parquet as pq

    scores = [tuple(row) for row in pq.read_table(folder / "wanted")["scores"].to_pylist() if row]
    assert len(set(scores)) == COUNT - 1
