"""The page of a Live session for the browsers of this computer, and nobody else.

It listens on 127.0.0.1. The address holds a token, and a request must name this address as its host, and as its origin if it
changes anything: other users lack the token, and other sites' scripts cannot send it, not even under a name that resolves to
127.0.0.1.
"""

from __future__ import annotations

import json
import secrets
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from minicaffe import limits
from minicaffe.errors import Error

from .session import Live

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


class LiveServer(ThreadingHTTPServer):
    """Serves a session at `address`. port: 0 for any that is free. Raises Error for one that is taken."""

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
        """What the base class prints, but for a browser that went away before its answer."""
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
        """Whether this is the page's address, as its own browser asks for it; otherwise it is refused."""
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
        """Nothing: the address holds the token."""
