"""Pages of `minicaffe live` of the nets in examples/shapes: served by the command, or as a folder for any web server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from click.testing import CliRunner

from minicaffe.cli import main

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _words(kind: str, *more: str) -> list[str]:
    net = [SHAPES / kind / "test.prototxt", SHAPES / kind / f"shapes_{kind}.caffemodel", "--image", SHAPES / "scene.png"]
    return ["live", *map(str, net), "--cfg", str(SHAPES / "shapes.yml"), *more]


@contextmanager
def live_server(kind: str, *more: str) -> Iterator[str]:
    """The address of a running `minicaffe live`."""
    command = [sys.executable, "-m", "minicaffe", *_words(kind, *more), "--threads", "1"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        assert process.wait() == 143


def write_live(folder: Path, kind: str, *more: str) -> None:
    """Write the folder of `minicaffe live --static`, with Pyodide's files to come in its folder pyodide."""
    done = CliRunner().invoke(main, [*_words(kind, *more), "--static", str(folder), "--pyodide", "pyodide/"])
    assert done.exit_code == 0, done.output


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """The address of a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()
