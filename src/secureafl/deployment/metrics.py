"""What a deployed server counts, in the form Prometheus reads (https://prometheus.io)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from secureafl.core.events import ArrivalEvent, Event, ForgottenEvent

_STALENESS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_LAST = 100  # uploads
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


class Metrics:
    """Counters of this session; a restarted server starts them at 0, as Prometheus expects."""

    def __init__(self) -> None:
        """A registry of its own, so that a process can hold several."""
        self.registry = made = CollectorRegistry()
        self._accepted = Counter("secureafl_updates_accepted", "Uploads accepted", registry=made)
        self._rejected = Counter(
            "secureafl_updates_rejected", "Uploads not accepted", ["reason"], registry=made
        )
        self._dropped = Counter(
            "secureafl_messages_dropped",
            "Messages that answer no open request",
            ["reason"],
            registry=made,
        )
        self._staleness = Histogram(
            "secureafl_staleness", "Rounds since the model", buckets=_STALENESS, registry=made
        )
        self._step = Histogram(
            "secureafl_step_seconds", "From answer to model", buckets=_SECONDS, registry=made
        )
        self._forgotten = Counter("secureafl_clients_forgotten", "Clients forgotten", registry=made)
        self.round = Gauge("secureafl_round", "Arrivals so far", registry=made)
        self.clients = Gauge("secureafl_clients", "Nodes that are here", registry=made)
        self.open = Gauge("secureafl_requests_open", "Requests without a reply", registry=made)
        self.lag = Gauge(
            "secureafl_lag_seconds", "From one look for replies to the next", registry=made
        )
        self._share = Gauge(
            "secureafl_refused_share", f"Of the last {_LAST} uploads", registry=made
        )
        self._refused: deque[bool] = deque(maxlen=_LAST)

    def count(self, events: list[Event], seconds: float | None = None) -> None:
        """What became of one arrival, if there was one, and how long the step took."""
        if seconds is not None:
            self._step.observe(seconds)
        for event in events:
            if isinstance(event, ForgottenEvent):
                self._forgotten.inc()
            elif isinstance(event, ArrivalEvent):
                self._staleness.observe(event.staleness)
                self.round.set(event.round + 1)
                if event.accepted:
                    self._accepted.inc()
                    self._note(refused=False)
                else:
                    self.refuse(event.reason)

    def refuse(self, reason: str) -> None:
        """An upload that was not accepted, by the defence or before it."""
        self._rejected.labels(reason).inc()
        self._note(refused=True)

    def _note(self, refused: bool) -> None:
        self._refused.append(refused)
        self._share.set(sum(self._refused) / len(self._refused))

    def drop(self, reason: str) -> None:
        """A message that was no arrival."""
        self._dropped.labels(reason).inc()

    def publish(self, port: int) -> tuple[int, Callable[[], None]]:
        """Answer at /metrics, to this machine only: a scraper elsewhere comes through a tunnel.

        Port 0 takes any that is free. Returns the port, and what ends it when it is called.
        """
        server, thread = start_http_server(port, "127.0.0.1", self.registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, end
