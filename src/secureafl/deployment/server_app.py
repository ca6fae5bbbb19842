"""The ServerApp: sends the model to every node and handles each reply the moment it arrives.

A reply is validated, decided on by the defence, applied and on the disk; then that node alone is
sent the new model. No node waits for another.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx  # which Flower's grid is made of
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from secureafl.core.events import ArrivalEvent, Event
from secureafl.deployment.client_app import REQUEST, named_arrays
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.disk import MEGABYTE, shortage
from secureafl.deployment.inbox import Inbox, Reply
from secureafl.deployment.liveness import LOG, Pulse, should_stop, watch
from secureafl.deployment.logs import Log
from secureafl.deployment.messages import (
    FAILED,
    OTHER_VERSION,
    PROTOCOL,
    TRAINED,
    UploadSchema,
)
from secureafl.deployment.metrics import Metrics
from secureafl.deployment.nodes import RevokedNodes
from secureafl.deployment.options import Options, read_file
from secureafl.deployment.own_task import task_checksum
from secureafl.deployment.requests import Request, RequestTracker
from secureafl.deployment.roster import Roster
from secureafl.experiment import write_experiment
from secureafl.runs.events import read_events
from secureafl.runs.layout import EXPERIMENT

_AT_ONCE = 16  # messages pushed together
# Seconds. Every operation of a step lets the interpreter go; where Flower keeps it busy, as its
# simulation engine does, each would wait for it 5 ms, a hundred times what it takes.
_SWITCH = 1e-5
_NO_ANSWER = (FAILED, OTHER_VERSION)
_PATIENCE = 300.0  # seconds a SuperLink may be away before this process gives up

T = TypeVar("T")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of Flower: run-config names the experiment file and the run folder."""
    given = context.run_config
    run(
        grid, Path(str(given["experiment"])), Path(str(given["out"])), str(given.get("attempt", ""))
    )


def run(grid: Grid, file: Path, out: Path, attempt: str = "") -> None:
    """Serve the experiment in a file to its end, or until asked to leave."""
    sys.setswitchinterval(_SWITCH)
    watch(out, attempt)
    log = Log(out / LOG)
    try:
        _serve(grid, file, out, attempt, log)
    except Exception as error:
        log("failed", attempt=attempt, said=f"{type(error).__name__}: {error}")
        raise


def _serve(grid: Grid, file: Path, out: Path, attempt: str, log: Log) -> None:
    if should_stop(out, attempt):
        return
    experiment, options = read_file(file)
    server = Coordinator(experiment)
    if not (out / EXPERIMENT).is_file():
        server.create(out)
    server.open(out)
    for note in server.notes:
        log("made_up_for", said=note)
    log("serving", round=server.round, rounds=experiment.rounds, attempt=attempt)
    loop = RequestLoop(grid, server, options, log)
    # The `serve` that made the attempt answers at that port, and asks here.
    port, unpublish = options.metrics_port, None
    if port:
        port, unpublish = loop.metrics.publish(0 if attempt else port)
    pulse = Pulse(out, attempt, port)
    pulse.beat(server.round)
    while not server.finished and not should_stop(out, attempt):
        if not loop.turn():
            time.sleep(options.poll_seconds)
        pulse.beat(server.round)
    server.close()
    loop.write_roster()
    if unpublish:
        unpublish()
    log("finished" if server.finished else "stopped", round=server.round)


class RequestLoop:
    """Sends requests to the nodes of a grid and handles their replies."""

    def __init__(self, grid: Grid, server: Coordinator, options: Options, log: Log) -> None:
        self._grid, self._server, self._log = grid, server, log
        self._tracker = RequestTracker(options.deadline, options.answers_per_minute)
        self._schema = UploadSchema(server.layout)
        self._inbox = Inbox(grid, self._schema.most_bytes)
        self._deadline = options.deadline
        self._facts = {  # of every request
            "experiment": write_experiment(server.experiment),
            "inputs": server.inputs.to_json(),
            "task_checksum": task_checksum(server.experiment.task),
            "protocol": PROTOCOL,
        }
        self._sent: tuple[int, Any] = (-1, None)  # version of the arrays made last, and these
        self._full: set[int] = set()  # nodes already logged as without a slot
        self._nodes: set[int] = set()
        self._revoked = RevokedNodes(server.folder.path)
        self._reserve, self._short = options.min_free_mb * MEGABYTE, False
        self._looked = time.perf_counter()
        self._away_since, self._reached = 0.0, True  # since when the grid has failed; 0: it works
        self.metrics = Metrics()
        path, tell = server.folder.path, options.tell_clients
        self._roster = Roster(path, server.experiment, server.slots, tell)
        self._roster.recount(read_events(path))

    def turn(self) -> bool:
        """Handle all replies and send a request to every idle node; whether any reply came in."""
        began, self._reached = time.perf_counter(), True
        self.metrics.lag.set(began - self._looked)
        self._looked = began
        if self._lacks_room():
            return False
        replies = self._call_grid(lambda: self._inbox.replies(self._tracker.open), [])
        self._update_nodes()
        self._remove_revoked()
        for reply in replies:
            if not self._server.finished:
                self._handle_reply(reply)
        for request in self._tracker.overdue(time.monotonic()):
            self._cancel(request, "late")
        if not self._server.finished:
            self._request_idle()
        if self._reached:
            self._away_since = 0.0
        self.write_roster()
        return bool(replies)

    def write_roster(self) -> None:
        """Let operators, and each client of itself, see how things are."""
        server, pauses = self._server, self._tracker.pauses(time.monotonic())
        facts = (server.round, server.finished, self._nodes, self._tracker.busy, pauses)
        self._roster.write(*facts)

    def _lacks_room(self) -> bool:
        """Whether the disk is too full to take updates; they wait at the SuperLink meanwhile."""
        reserve = max(self._reserve, self._server.checkpoint_bytes())
        line = shortage(self._server.folder.path, reserve)
        if bool(line) != self._short:
            self._short = bool(line)
            self._log("disk_full" if line else "disk_free", said=line)
        return self._short

    def _call_grid(self, call: Callable[[], T], otherwise: T) -> T:
        """What the grid answers. While the SuperLink is away, which is started again: `otherwise`.

        Nothing else may be excused here: a journal that cannot be written must end this process.
        """
        try:
            return call()
        except (OSError, httpx.HTTPError) as error:
            now, self._reached = time.monotonic(), False
            self._away_since = self._away_since or now
            away = round(now - self._away_since, 1)
            self._log("grid_away", error=type(error).__name__, seconds=away)
            if away > _PATIENCE:
                raise
            time.sleep(1.0)
            return otherwise

    def _update_nodes(self) -> None:
        here = self._call_grid(lambda: set(self._grid.get_node_ids()), self._nodes)
        here = here - self._revoked.read()
        for node in here - self._nodes:
            self._log("here", node=node)
        for node in self._nodes - here:
            self._log("gone", node=node)
        self._nodes = here
        self.metrics.clients.set(len(here))

    def _remove_revoked(self) -> None:
        """Free the slots of nodes that were put out, and take no answer of theirs any more."""
        for node in sorted(self._revoked.read()) if not self._server.finished else ():
            for request in self._tracker.give_up(node):
                self._cancel(request, "revoked")
            events = self._server.remove(node)
            self.metrics.count(events)
            for event in events:
                self._log("slot_free", node=node, **event._asdict())

    def _handle_reply(self, reply: Reply) -> None:
        began, now = time.perf_counter(), time.monotonic()
        request = self._tracker.close(reply.request, reply.node)
        if isinstance(request, str):
            self._drop(request, reply.node)
            return
        answer = reply.reason or self._schema.read(reply.content or {})
        taken = self._server.slots.slot(request.node) != request.client
        if reply.node is None or taken or answer in _NO_ANSWER:
            # No update, or one of a node whose slot has gone to another by now.
            self._tracker.replied(request.node, False, now)
            self._cancel(request, answer if isinstance(answer, str) else "slot_taken")
            return
        facts = (request.client, request.version, reply.request)
        outcome = answer if isinstance(answer, str) else self._server.receive(*facts, answer)
        self._tracker.replied(request.node, not isinstance(outcome, str), time.monotonic())
        if isinstance(outcome, str):
            self._refuse(request, outcome)
        else:
            self._count(request, outcome, time.perf_counter() - began)

    def _count(self, request: Request, events: list[Event], seconds: float) -> None:
        self.metrics.count(events, seconds)
        for event in events:
            if isinstance(event, ArrivalEvent):
                # From answer to model, the server's step alone, and without waiting for a core.
                took = {"seconds": seconds, "step": self._server.step_seconds}
                took["step_cpu"] = self._server.step_cpu_seconds
                rounded = {name: round(value, 4) for name, value in took.items()}
                self._log("arrival", node=request.node, **event._asdict(), **rounded)
                self._roster.count(request.node, event)

    def _refuse(self, request: Request, reason: str) -> None:
        """Tell of an answer that the defence must not see; it is no round."""
        self._server.cancel(request.version)
        self.metrics.refuse(reason)
        self._roster.drop(request.node, reason)
        self._log("refused", node=request.node, client=request.client, reason=reason)

    def _cancel(self, request: Request, reason: str) -> None:
        self._server.cancel(request.version)
        self._drop(reason, request.node)

    def _drop(self, reason: str, node: int | None) -> None:
        self.metrics.drop(reason)
        self._roster.drop(node, reason)
        self._log("dropped", node=node, reason=reason)

    def _request_idle(self) -> None:
        idle = [n for n in sorted(self._nodes) if self._tracker.may_request(n, time.monotonic())]
        assigned = [(node, slot) for node in idle if (slot := self._slot(node)) is not None]
        for first in range(0, len(assigned), _AT_ONCE):
            self._send_requests(assigned[first : first + _AT_ONCE])
        self.metrics.open.set(len(self._tracker.open))

    def _slot(self, node: int) -> int | None:
        slot = self._server.slots.assign(node, self._server.round)
        if slot is None and node not in self._full:
            self._full.add(node)
            clients = self._server.experiment.clients
            self._log("no_slot", node=node, remedy=f"all {clients} are taken; raise clients")
        return slot

    def _send_requests(self, assigned: list[tuple[int, int]]) -> None:
        version = self._server.round
        messages = [self._message(node, slot, version) for node, slot in assigned]
        ids = self._call_grid(lambda: list(self._grid.push_messages(messages)), [])
        ids += [""] * (len(assigned) - len(ids))
        for message, (node, slot) in zip(ids, assigned, strict=True):
            if message:
                lent = self._server.lend()
                self._tracker.opened(message, Request(node, slot, lent, time.monotonic()))
                self._roster.ask(node)
            else:
                self._tracker.replied(node, False, time.monotonic())  # later, then

    def _message(self, node: int, slot: int, version: int) -> Message:
        facts: dict[str, Any] = {
            **self._facts,
            "client": slot,
            "version": version,
            # A message's id is a hash of it: with this no other node can guess it and reply.
            "ticket": secrets.token_hex(16),
        }
        content = RecordDict({TRAINED: self._arrays(version), REQUEST: ConfigRecord(facts)})
        return Message(
            content, dst_node_id=node, message_type=MessageType.TRAIN, ttl=self._deadline
        )

    def _arrays(self, version: int) -> Any:
        """The model as a record, made once per version."""
        if self._sent[0] != version:
            weights = self._server.weights.cpu().numpy()
            self._sent = version, named_arrays(weights, self._server.layout)
        return self._sent[1]
