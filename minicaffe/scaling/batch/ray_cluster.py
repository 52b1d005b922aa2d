"""The Ray that a run works on: one of its own, or a cluster's."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from io import StringIO
from typing import Any

from minicaffe.errors import Error
from minicaffe.scaling.stops import held_back

from .ray_watch import watched

ANSWER = 5.0
"""Seconds that a cluster has to accept a connection, and to greet."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client begins to speak gRPC, as Ray does: the preface of HTTP/2 and an empty frame of settings (RFC 9113, section 3.4).
The server's first frame is of settings (type 4) too."""
STORE = 2**28
"""Bytes of the object store of a Ray of one's own, beside the weights: what goes through it is names and counts."""


def require_ray() -> Any:
    """The ray module with ray.data, or an Error that says how to get it."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later releases have it; else each worker warns
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # else a thread of Ray Data's that outlives a stop starts another Ray
    try:
        import ray
        import ray.data  # noqa: F401
    except ImportError as error:
        raise Error('--engine ray needs Ray: pip install "minicaffe[ray]"') from error
    return ray


@contextmanager
def connected(address: str | None, weight_bytes: int) -> Iterator[Any]:
    """ray, connected to the cluster at address, or to a Ray of this machine that ends with the block.

    A Ray that the process is connected to already is taken, and left. Nothing in the block reaches stdout, on which Ray tells
    at length of workers that died. A stop waits while Ray starts or ends: amid that Ray crashes. Raises Error where no cluster
    answers.
    """
    ray = require_ray()
    with redirect_stdout(StringIO()):
        if ray.is_initialized():
            yield ray
            return
        try:
            with held_back():
                start(ray, address, weight_bytes)
            with watched(head(ray, address)) if address else nullcontext():
                yield ray
        finally:
            with held_back():
                ray.shutdown()


def start(ray: Any, address: str | None, weight_bytes: int) -> None:
    """Connect, or start a Ray of one's own. Raises Error."""
    quiet()
    if address:
        check_answers(address)
    options: dict[str, Any] = {"address": address} if address else {"address": "local", **own(weight_bytes)}
    try:
        with no_stderr():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError and gRPC's
        raise Error(f"Ray{f' at {address}' if address else ''} cannot be reached: {error}") from error


def head(ray: Any, address: str) -> str:
    """HOST:PORT of the cluster connected to by way of address, which may be "auto"."""
    found = address.removeprefix("ray://")
    return found if found.rpartition(":")[2].isdecimal() else str(ray.get_runtime_context().gcs_address)


def check_answers(address: str) -> None:
    """Raises Error where nobody listens at HOST:PORT, or who does is not Ray: Ray would try for a minute, without a word."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER) as connection:
            speaks = os.environ.get("RAY_USE_TLS", "0") == "1" or speaks_grpc(connection)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise Error(f"Ray at {address} cannot be reached: {why}") from error
    if not speaks:
        raise Error(f"Ray at {address} cannot be reached: what listens there is not Ray")


def speaks_grpc(connection: socket.socket) -> bool:
    """Whether the server answers the greeting as one of gRPC does, within the connection's time."""
    try:
        connection.sendall(GREETING)
        frame = b""
        while len(frame) < 9 and (more := connection.recv(9 - len(frame))):
            frame += more
    except (TimeoutError, ConnectionError):
        return False
    return len(frame) == 9 and frame[3] == 4


def own(weight_bytes: int) -> dict[str, Any]:
    """Options of a Ray of one's own: no dashboard, and no more memory than the run needs."""
    return {"include_dashboard": False, "object_store_memory": STORE + 2 * weight_bytes}


def quiet() -> None:
    """No bars, no advice, no usage report: the run has a display of its own."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def no_stderr() -> Iterator[None]:
    """A block in which what libraries write to stderr is lost: Ray's core says there which level its log has."""
    before = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def node_resources(ray: Any) -> list[dict[str, float]]:
    """The resources of the nodes that are alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def gpu_problem(ray: Any) -> str:
    """Why no actor can use the cluster's GPUs; "" where one can. Asked on a node that has one."""
    if not any(node.get("GPU") for node in node_resources(ray)):
        return "the Ray cluster has no GPU"
    probe = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(_gpu_problem)
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
