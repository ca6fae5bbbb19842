"""What `serve` shows to this machine alone: /health, and /metrics for Prometheus.

It is `serve` that answers, since it outlives its ServerApp and sees all of its processes. What the
ServerApp counts is fetched from it.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from secureafl.core.errors import ConfigError

HOST = "127.0.0.1"
_FETCH_SECONDS = 3.0
_PATIENCE = 10.0  # seconds a reader may keep us waiting


class Health(NamedTuple):
    """How a service does."""

    problems: list[str]  # empty: all is well
    round: int
    server_app_alive: bool
    heartbeat_age: float | None  # seconds since the ServerApp showed itself
    arrival_age: float | None  # seconds since the last arrival; None: there was none yet
    disk_free_bytes: int
    restarts: dict[str, int]  # by process
    certificate_seconds: float | None  # until the server's certificate ends; None: it has none
    app_port: int = 0  # where the ServerApp's own metrics are; 0: nowhere

    def as_json(self) -> bytes:
        """What /health answers."""
        fields = self._asdict()
        del fields["app_port"]
        rounded = {k: round(v, 1) if isinstance(v, float) else v for k, v in fields.items()}
        status = "failing" if self.problems else "ok"
        return json.dumps({"status": status, **rounded}, indent=1).encode()


class _Collector:
    """The gauges of `serve`, made when they are asked for."""

    def __init__(self, examine: Callable[[], Health]) -> None:
        self._examine = examine

    def collect(self) -> Iterator[Metric]:
        found = self._examine()
        gauges = {
            "secureafl_healthy": ("Whether /health says ok", not found.problems),
            "secureafl_server_app_up": ("Whether a ServerApp is at work", found.server_app_alive),
            "secureafl_disk_free_bytes": ("Room at the run folder", found.disk_free_bytes),
            "secureafl_last_arrival_age_seconds": ("Since the last arrival", found.arrival_age),
            "secureafl_heartbeat_age_seconds": (
                "Since the ServerApp showed itself",
                found.heartbeat_age,
            ),
            "secureafl_certificate_expires_seconds": (
                "Until the server's certificate ends",
                found.certificate_seconds,
            ),
        }
        for name, (about, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(name, about, float(value))
        restarts = CounterMetricFamily("secureafl_restarts", "Processes begun again", None, ["of"])
        for process, count in found.restarts.items():
            restarts.add_metric([process], count)
        yield restarts


class Monitor:
    """The web server of an operator; `close` ends it."""

    def __init__(self, examine: Callable[[], Health], port: int) -> None:
        """`examine` is called from other threads. Port 0 takes any that is free."""
        try:
            self._server = _Server(examine, port)
        except OSError as error:
            said = f"cannot be opened ({error.strerror}); choose another"
            raise ConfigError(f"metrics_port = {port}: {said}") from None
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, examine: Callable[[], Health], port: int) -> None:
        self.examine, self.registry = examine, CollectorRegistry()
        self.registry.register(_Collector(examine))
        super().__init__((HOST, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyrefly: ignore  (of this class, always)
    timeout = _PATIENCE
    server_version, sys_version = "SecureAFL", ""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: this is asked every few seconds."""

    def do_GET(self) -> None:
        if self.path == "/health":
            found = self.server.examine()
            self._send(503 if found.problems else 200, "application/json", found.as_json())
        elif self.path == "/metrics":
            text = generate_latest(self.server.registry) + _fetch(self.server.examine().app_port)
            self._send(200, "text/plain; version=0.0.4; charset=utf-8", text)
        else:
            self._send(404, "text/plain", b"there are /health and /metrics")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _fetch(port: int) -> bytes:
    """What the ServerApp counts; nothing while there is none."""
    if not port:
        return b""
    try:
        with urllib.request.urlopen(
            f"http://{HOST}:{port}/metrics", timeout=_FETCH_SECONDS
        ) as page:
            return page.read()
    except OSError:
        return b""
