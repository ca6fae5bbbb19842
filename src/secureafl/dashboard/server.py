"""The web server of the dashboard, made with the standard library.

It only reads, only what lies in the run folders it found itself, and only for those who may look.
"""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from secureafl.core.errors import ConfigError
from secureafl.dashboard.access import COOKIE, access_to
from secureafl.dashboard.runs import Runs
from secureafl.dashboard.streams import one_client, overview
from secureafl.presentation.style import COLOURS, MEANINGS, ON_DARK, style_sheet

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MOST_STREAMS = 64
_MOST_CONNECTIONS = 2 * _MOST_STREAMS  # each has a thread
_HEAD_SECONDS = 10.0  # from connecting until a whole request must be there
_MOST_FIELDS = 50  # of an address
_MOST_OVERLAID = 7  # as many colours as there are
_PATIENCE = 30.0  # seconds a reader may take for a piece of the answer


class Dashboard(ThreadingHTTPServer):
    """Serves the page until it is closed."""

    daemon_threads = True

    def __init__(self, root: Path, host: str, port: int, token: str | None) -> None:
        """Port 0 takes any that is free; an address others can reach needs a token."""
        self.runs, self.access = Runs(root), access_to(host, token)
        self.files = _files()
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self.connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{host}, port {port}: cannot be served ({error}); choose another --port"
            ) from error

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host, port = self.server_address[:2]
        name = f"[{host}]" if ":" in str(host) else host
        asked = f"?{urlencode({'token': self.access.token})}" if self.access.token else ""
        return f"http://{name}:{port}/{asked}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, as long as there are not too many."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had
            self.connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over readers who closed the connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard  # pyrefly: ignore  (of this class, always)
    timeout = _PATIENCE
    server_version, sys_version = "SecureAFL", ""

    def setup(self) -> None:
        """Give a request a time limit: a byte now and then would hold its thread for ever."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_TimedReader(self.connection))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a token in an address must not get into a log."""

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, max_num_fields=_MOST_FIELDS)
        except ValueError:
            self._send(400, "text/plain", "no such address")
            return
        refusal = self.server.access.refusal(dict(self.headers.items()), query)
        if refusal:
            self._send(403, _TYPES[".html"], f"<!doctype html><title>403</title><p>{refusal}")
        elif "token" in query:
            self._keep_token(url.path, query)
        elif url.path == "/api/stream":
            self._stream_overview(query)
        elif url.path == "/api/client":
            self._stream_client(query)
        elif url.path in self.server.files:
            kind, content = self.server.files[url.path]
            self._send(200, kind, content)
        else:
            self._send(404, "text/plain", "no such page")

    def _keep_token(self, path: str, query: dict[str, list[str]]) -> None:
        """Take the token out of the address, where history and screenshots would show it."""
        rest = urlencode([(k, v) for k, vs in query.items() if k != "token" for v in vs])
        self.send_response(303)
        self._send_headers()
        # Another path than one of ours could be taken for another site's.
        self.send_header("Location", f"/?{rest}" if rest else "/")
        cookie = f"{COOKIE}={self.server.access.token}; HttpOnly; SameSite=Strict; Path=/"
        if self.server.access.token:
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _stream_overview(self, query: dict[str, list[str]]) -> None:
        runs = self.server.runs
        names = runs.names()
        front = query.get("run", [runs.newest()])[0]
        if front and front not in names:
            self._send(404, "text/plain", "no such run")
            return
        others = [n for n in dict.fromkeys(query.get("with", [])) if n in names and n != front]
        first = _whole_number(query.get("lanes", ["0"])[0]) or 0
        last = self.headers.get("Last-Event-ID", "")
        self._stream(overview(runs, front, others[: _MOST_OVERLAID - 1], first, last))

    def _stream_client(self, query: dict[str, list[str]]) -> None:
        run = query.get("run", [self.server.runs.newest()])[0]
        watch = self.server.runs.watch(run)
        client = _whole_number(query.get("client", [""])[0])
        if watch is None or client is None:
            self._send(404, "text/plain", "no such run, or no client")
            return
        self._stream(one_client(run, watch, client))

    def _stream(self, events: Iterator[bytes]) -> None:
        if not self.server.streams.acquire(blocking=False):
            self._send(503, "text/plain", "too many pages are open")
            return
        try:
            self.send_response(200)
            self._send_headers()
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.end_headers()
            for event in events:
                self.wfile.write(event)
        except OSError:
            pass  # the page was closed
        finally:
            self.server.streams.release()
            self.close_connection = True

    def _send(self, status: int, kind: str, content: str | bytes) -> None:
        body = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        self._send_headers()
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a moment, however the bytes are spread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._until = connection, time.monotonic() + _HEAD_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_PATIENCE)


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _files() -> dict[str, tuple[str, bytes]]:
    """Everything there is to serve, by address."""
    folder = resources.files("secureafl.dashboard").joinpath("static")
    found = {
        "/look.css": (_TYPES[".css"], style_sheet().encode()),
        "/look.js": (_TYPES[".js"], _look().encode()),
    }
    for part in (folder, folder.joinpath("uplot")):
        for file in part.iterdir():
            kind = _TYPES.get(Path(file.name).suffix)
            if kind and file.is_file():
                found[f"/{file.name}"] = (kind, file.read_bytes())
    found["/"] = found.pop("/index.html")
    return found


def _look() -> str:
    """The colours and words of the pictures, as a script."""
    words = {"COLOURS": COLOURS, "MEANINGS": MEANINGS, "ON_DARK": ON_DARK}
    return "".join(f"export const {k} = {json.dumps(v)};\n" for k, v in words.items())
