"""A Live session for the browsers of this computer, or as files for any web server.

LiveServer listens on 127.0.0.1. The address holds a token, and a request must name this address as its host, and as its origin
if it changes anything: other users lack the token, and other sites' scripts cannot send it, not even under a name that resolves
to 127.0.0.1.

write_site writes files with which Python itself runs in the reader's browser (Pyodide), in a worker:
    index.html     the page of the first pass, which opens at once
    worker.js      loads Pyodide, then answers changes as the server does
    packages.zip   minicaffe and the pure Python packages that it needs; NumPy and Pillow are Pyodide's
    files.zip      the files that the command names
"""

from __future__ import annotations

import io
import json
import re
import secrets
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from minicaffe import limits
from minicaffe.errors import Error
from minicaffe.files import replacing, unlinked

from .live import Live
from .trace_page import Json

if TYPE_CHECKING:
    from importlib.abc import Traversable


HOST = "127.0.0.1"
PATIENCE = 30
"""Seconds that a request may take to arrive."""

MOST_BYTES = 2**27
"""Of a request."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

PYODIDE = "https://cdn.jsdelivr.net/pyodide/v0.27.7/full/"
"""Where Pyodide's files are, unless the user names another place. This version is the one that the tests run."""

PYODIDE_BYTES = 16_620_000
"""What a browser loads of it, with NumPy and Pillow."""

NEEDED = ("click", "protobuf", "PyYAML", "rich", "threadpoolctl")
"""Distributions whose Python files are taken along, with what they need themselves."""

UNUSED = ("pygments", "markdown-it-py")
"""Distributions that rich needs only for source code and Markdown."""


class LiveServer(ThreadingHTTPServer):
    """A server of a session at `address`. port: 0 for any free one. Raises Error if the port is taken."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, live: Live, port: int = 0) -> None:
        self.live = live
        self.path = f"/{secrets.token_urlsafe(24)}/"
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            why = error.strerror or error
            raise Error(f"port {port} of {HOST} cannot be used: {why}; --port 0 takes a free one") from error
        self.hosts = [f"{name}:{self.server_port}" for name in (HOST, "localhost")]
        self.address = f"http://{self.hosts[0]}{self.path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print the error, unless the browser closed the connection before its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = PATIENCE
    server_version, sys_version = "minicaffe", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._allowed(self.server.path):
            self._send(HTTPStatus.OK, "text/html", self.server.live.page())

    def do_POST(self) -> None:
        if not self._allowed(self.server.path + "change"):
            return
        origin, kind = self.headers.get("Origin"), self.headers.get_content_type()
        if origin not in [f"http://{host}" for host in self.server.hosts] or kind != "application/json":
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._refuse(HTTPStatus.LENGTH_REQUIRED)
        elif len(length) > 18 or int(length) > min(2 * limits.bytes, MOST_BYTES):  # base64 is a third longer than a photo
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            try:
                request = json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError):
                self._refuse(HTTPStatus.BAD_REQUEST)
                return
            self._send(HTTPStatus.OK, "application/json", json.dumps(self.server.live.answer(request), allow_nan=False))

    def _allowed(self, path: str) -> bool:
        """Return True for a request to the page's own address and host; refuse any other."""
        mine = secrets.compare_digest(self.path.partition("?")[0].encode(), path.encode())
        if mine and self.headers.get("Host") in self.server.hosts:
            return True
        self._refuse(HTTPStatus.NOT_FOUND)
        return False

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True  # a body may be unread
        self._send(status, "text/plain", status.phrase)

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the address holds the token."""


def write_site(folder: Path, live: Live, python: Json, named: Mapping[str, Path]) -> None:
    """Write the site into a folder, made if missing. Raises Error.

    python: the data for worker.js; named: the user's files by their paths in the worker.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        script = (files("minicaffe.tracing") / "trace_page_files" / "worker.js").read_bytes()
        archives = {
            "packages.zip": _zipped(_packages()),
            "files.zip": _zipped((name, path.read_bytes()) for name, path in named.items()),
        }
        size = PYODIDE_BYTES + sum(map(len, archives.values()))
        parts = {**archives, "worker.js": script, "index.html": live.page({**python, "bytes": size}).encode()}
        for name, content in parts.items():
            with replacing(unlinked(folder / name)) as temporary:
                temporary.write_bytes(content)
    except OSError as error:
        raise Error(f"{folder}: cannot be written: {error.strerror or error}") from error


def _packages() -> Iterator[tuple[str, bytes]]:
    yield from _sources(files("minicaffe"), "minicaffe")
    for found in _installed(NEEDED):
        for file in found.files or ():
            if file.suffix == ".py" or file.match("*.dist-info/METADATA"):
                yield file.as_posix(), Path(str(found.locate_file(file))).read_bytes()


def _installed(names: Iterable[str]) -> Iterator[Distribution]:
    """Yield distributions and their requirements. Requirements that are not installed are for other platforms."""
    todo, seen = list(names), set(UNUSED)
    for name in todo:  # todo grows in the loop
        if name.lower() not in seen:
            seen.add(name.lower())
            with suppress(PackageNotFoundError):
                found = distribution(name)
                todo += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in found.requires or () if "extra ==" not in line]
                yield found


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of a package's files, following links, without the GPU's sources."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "__pycache__")) or entry.name.endswith((".cu", ".cuh")):
            continue
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        else:
            yield f"{name}/{entry.name}", entry.read_bytes()


def _zipped(parts: Iterable[tuple[str, bytes]]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in parts:
            if ".." not in Path(name).parts:  # skips a distribution's scripts
                zipped.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()
