"""One benchmark: everything measured in one go on one machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from secureafl.bench import machine, paper
from secureafl.bench.cases import Scope
from secureafl.bench.jobs import Measured, Skipped, carry_out, plan
from secureafl.bench.load import SEED
from secureafl.bench.results import SCHEMA, Row, make_rows, skipped_as_json
from secureafl.kernels.dispatch import Kernels, version_for


class Ahead(NamedTuple):
    """The measurement that comes next."""

    number: int  # from 1
    total: int
    name: str


class Findings:
    """Collects measurements; complete up to the point where a benchmark is interrupted."""

    def __init__(self, scope: Scope, device: torch.device) -> None:
        self.main, self.device = scope.main, device
        self.hardware = machine.device_name(device)
        self.bandwidth: machine.Bandwidth | None = None
        self.measured: list[Measured] = []
        self.skipped: list[Skipped] = []
        self._jobs = plan(scope, device)
        self._date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def gather(self) -> Iterator[Ahead]:
        """Take all measurements; yields each one's progress before it starts."""
        total = 2 + len(self._jobs)
        yield Ahead(1, total, "read and copy bandwidth")
        self.bandwidth = machine.measure_bandwidth(self.main, self.device)
        for number, job in enumerate(self._jobs, 2):
            yield Ahead(number, total, str(job))
            match carry_out(job):
                case Measured() as measured:
                    self.measured.append(measured)
                case Skipped() as skipped:
                    self.skipped.append(skipped)
        # Once more, in case something else kept the machine busy at the beginning.
        yield Ahead(total, total, "read and copy bandwidth again")
        again = machine.measure_bandwidth(self.main, self.device)
        self.bandwidth = self.bandwidth.best(again)

    def rows(self) -> list[Row]:
        """The measurements so far."""
        return make_rows(self.measured, self.bandwidth, self.main) if self.bandwidth else []

    def report(self, finished: bool, command: str, kernels: Kernels) -> dict[str, Any]:
        """The content of bench.json (`bench.results`)."""
        used = version_for(torch.empty(0, device=self.device)).__name__.rpartition(".")[2]
        return {
            "schema": SCHEMA,
            "finished": finished,
            "date": self._date,
            "command": command,
            "seed": SEED,
            "threads": torch.get_num_threads(),
            "kernels": {"asked": kernels, "used": used},
            "device": {"type": self.device.type, "name": self.hardware},
            "machine": machine.describe_machine(),
            "versions": machine.versions(),
            "bandwidth": self.bandwidth and self.bandwidth._asdict(),
            "main": self.main._asdict(),
            "rows": [row._asdict() for row in self.rows()],
            "skipped": skipped_as_json(self.skipped),
            "paper": paper.as_json(),
        }
