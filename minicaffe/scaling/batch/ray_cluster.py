"""The Ray of a run, a new one on this machine or a cluster, and the threads and processes that watch it.

If the cluster's head or this machine's raylet is gone, the run ends with an error. Ray's core waits a minute for the head, and
then ends the process silently. Without the raylet it ends the process at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

from minicaffe.errors import Error, install
from minicaffe.scaling.stops import exit_status, held_back

LOST = 45.0
"""Seconds without an answer until the run ends: before Ray's core ends the process."""
EVERY = 1.0
"""Seconds between two checks, and the timeout of a check."""
RESUME = "finished parts stay, and the same command resumes the run"


@contextmanager
def watched(address: str) -> Iterator[None]:
    """Watch the head at HOST:PORT in the block.

    If it does not answer for LOST seconds, the process ends with status 1. An exception would wait in Ray, which cannot end
    without its head.
    """
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(address, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _watch(address: str, over: threading.Event) -> None:
    answered = time.monotonic()
    while not over.wait(EVERY):
        if answers(address, EVERY):
            answered = time.monotonic()
        elif time.monotonic() - answered > LOST:
            sys.stderr.write(f"minicaffe: Ray at {address} has not answered for {LOST:g} s: {RESUME}\n")
            sys.stderr.flush()
            # Without clean-up: ray.shutdown would wait for the head.
            os._exit(1)


def answers(address: str, seconds: float) -> bool:
    """Return whether a server accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError:
        return False
    return True


@contextmanager
def reported(raylet: str) -> Iterator[None]:
    """In the block, let another process report the death of the raylet with this socket: Ray's core then ends this one."""
    if not hasattr(socket, "AF_UNIX"):
        yield
        return
    message = f"minicaffe: the Ray process of this machine (raylet) died, and ended the run: {RESUME}\n"
    script = Path(__file__).with_name("raylet_report.py")
    # A new session, so that Ctrl-C in a terminal does not end the script first.
    command = [sys.executable, "-I", "-S", str(script), raylet, message]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield
        except BaseException:
            if not _listens(raylet):  # Ray's core is about to end this process, so let the script report why
                process.communicate()
                os._exit(1)
            raise
        finally:
            with suppress(OSError, ValueError):  # the script was killed, or has reported
                process.communicate(b".")


def _listens(path: str) -> bool:
    """Return whether a process listens at the socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


ANSWER = 5.0
"""Seconds for a cluster to accept a connection, and to answer the greeting."""
JOINING = 30.0
"""Seconds to join a cluster that answers."""
LEAVING = 1.0
"""Seconds to wait for the end of joining after a stop: a process that has joined can leave in order."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The start of a gRPC connection to Ray: the preface of HTTP/2 and an empty settings frame (RFC 9113, section 3.4). The server
also answers with a settings frame (type 4)."""
SILENT = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Options of ray.init."""
STORE = 2**28
"""Bytes of a new Ray's object store besides the weights: it holds only names and counts."""


def require_ray() -> Any:
    """Return the ray module with ray.data. Raises Error, which says how to install it."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # newer Ray's default; without it each worker warns
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # else a thread of Ray Data that outlives a stop starts another Ray
    try:
        import ray
        import ray.data  # noqa: F401
    except ImportError as error:
        raise Error(f"--engine ray needs Ray: {install('ray')}") from error
    return ray


@contextmanager
def connected(address: str | None, weight_bytes: int) -> Iterator[Any]:
    """Give the ray module, connected to the cluster at address, or to a new Ray on this machine that ends with the block.

    An existing connection is used and kept. Output to stdout is dropped in the block, because Ray reports dead workers there at
    length. SIGINT and SIGTERM wait while a new Ray starts or ends, because they would crash it. Raises Error if no cluster
    answers.
    """
    ray = require_ray()
    with redirect_stdout(StringIO()):
        if ray.is_initialized():
            yield ray
            return
        address = address and resolved(address)
        quiet()
        try:
            with ExitStack() as watches:
                if address:
                    context = join(ray, address)
                    watches.enter_context(watched(head(ray, address)))
                else:
                    with held_back():
                        context = start(ray, weight_bytes)
                if raylet := getattr(context, "address_info", {}).get("raylet_socket_name"):
                    watches.enter_context(reported(raylet))
                yield ray
        finally:
            if not _JOINING:
                with held_back():
                    ray.shutdown()
                    _ignore_late_ends(ray)


@cache
def _ignore_late_ends(ray: Any) -> None:
    """Silence the harmless errors of Ray Data's objects that are collected after Ray has ended, as after a stopped run."""
    say = sys.unraisablehook

    def hook(problem: sys.UnraisableHookArgs) -> None:
        if not isinstance(problem.exc_value, ray.exceptions.RaySystemError):
            say(problem)

    sys.unraisablehook = hook


def start(ray: Any, weight_bytes: int) -> Any:
    """Start a new Ray without a dashboard and with no more memory than needed; return its context. Raises Error."""
    try:
        with no_stderr():
            return ray.init(address="local", include_dashboard=False, object_store_memory=STORE + 2 * weight_bytes, **SILENT)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError and gRPC's
        raise Error(f"Ray cannot be started: {error}") from error


_JOINING: list[threading.Thread] = []
"""The thread that joins a cluster. One that is left behind holds Ray's lock, so that Ray cannot be shut down."""


def join(ray: Any, address: str) -> Any:
    """Join the cluster; return its context. Raises Error.

    ray.init may wait for minutes in C++, deaf to signals, so it runs in a thread. If a stop or JOINING seconds leave it behind,
    the process later ends without Ray's clean-up.
    """
    check_answers(address)
    found: list[Any] = []
    thread = threading.Thread(target=_collect, args=(found, partial(ray.init, address=address, **SILENT)), daemon=True)
    _JOINING.append(thread)
    with no_stderr():
        thread.start()
        try:
            thread.join(JOINING)
        except KeyboardInterrupt as stop:
            thread.join(LEAVING)
            _end_without_ray(thread, exit_status(stop))
            raise
        _end_without_ray(thread, 1)
    if not found:
        where = f"no Ray of this cluster on this machine can be joined within {JOINING:g} s"
        raise Error(f"Ray at {address}: {where}: run `ray stop` and `ray start --address {address}` here")
    if isinstance(found[0], Exception):
        raise Error(f"Ray at {address} cannot be reached: {found[0]}") from found[0]
    return found[0]


def _collect(found: list[Any], make: Callable[[], Any]) -> None:
    """Append the result of make, or its exception, to found."""
    try:
        found.append(make())
    except Exception as error:  # ConnectionError, RuntimeError, ValueError and gRPC's
        found.append(error)


def _end_without_ray(thread: threading.Thread, status: int) -> None:
    """If the thread still joins, end the process without Ray's clean-up, which would wait for the thread."""
    if thread.is_alive():
        atexit.register(_end, status)
    else:
        _JOINING.remove(thread)


def _end(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def resolved(address: str) -> str:
    """Return HOST:PORT for "auto" as Ray finds it, any other address unchanged. Raises Error.

    Ray looks in RAY_ADDRESS, for a running raylet, and in the file of the last cluster, which a crash leaves behind.
    """
    if address != "auto":
        return address
    if address := os.environ.get("RAY_ADDRESS", ""):
        return address
    from ray._private import services

    try:
        services.find_gcs_addresses.cache_clear()
        return str(services.canonicalize_bootstrap_address("auto"))
    except Exception as error:  # ConnectionError, and ValueError of a damaged file
        raise Error(f"Ray at auto cannot be reached: {error}") from error


def head(ray: Any, address: str) -> str:
    """Return HOST:PORT of the cluster that was joined at address, which may have no port."""
    found = address.removeprefix("ray://")
    return found if found.rpartition(":")[2].isdecimal() else str(ray.get_runtime_context().gcs_address)


def check_answers(address: str) -> None:
    """Raise Error if no Ray answers at HOST:PORT: Ray itself would silently try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER) as connection:
            speaks = os.environ.get("RAY_USE_TLS", "0") == "1" or speaks_grpc(connection)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        left = "if a crashed cluster left this address behind, run `ray stop`"
        raise Error(f"Ray at {address} cannot be reached: {why}; {left}") from error
    if not speaks:
        raise Error(f"Ray at {address} cannot be reached: what listens there is not Ray")


def speaks_grpc(connection: socket.socket) -> bool:
    """Return whether the server answers the greeting like a gRPC server within the connection's timeout."""
    try:
        connection.sendall(GREETING)
        frame = b""
        while len(frame) < 9 and (more := connection.recv(9 - len(frame))):
            frame += more
    except (TimeoutError, ConnectionError):
        return False
    return len(frame) == 9 and frame[3] == 4  # 24 bits of length, then the type


def quiet() -> None:
    """Turn off progress bars, advice and usage reports: the run has its own display."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def no_stderr() -> Iterator[None]:
    """Drop, in the block, what libraries write to stderr: Ray's core reports its log level there."""
    before = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)  # the descriptor: Ray's core is C++ and bypasses sys.stderr
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(null)


def node_resources(ray: Any) -> list[dict[str, float]]:
    """Return the resources of the live nodes."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def gpu_problem(ray: Any) -> str:
    """Return the reason why actors cannot use the cluster's GPUs, or "". A task on a node with a GPU checks it."""
    if not any(node.get("GPU") for node in node_resources(ray)):
        return "the Ray cluster has no GPU"
    probe = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(_gpu_problem)  # no CPU: they may all be requested
    problem: str = ray.get(probe.remote())
    return problem


def _gpu_problem() -> str:
    from minicaffe.errors import DeviceError
    from minicaffe.mode import set_mode_cpu, set_mode_gpu

    try:
        set_mode_gpu()
    except DeviceError as error:
        return str(error)
    set_mode_cpu()
    return ""
