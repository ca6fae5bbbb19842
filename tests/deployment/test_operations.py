"""The files in examples/operations fit what the commands take and what is measured."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from secureafl.cli.app import app
from secureafl.deployment.metrics import Metrics
from secureafl.deployment.monitor import Health, Monitor, _Collector

FOLDER = Path(__file__).parents[2] / "examples" / "operations"
UNITS = sorted(FOLDER.glob("*.service"))
FINE = Health([], 7, True, 1.0, 2.0, 10**9, {"superlink": 0}, 1e6)


class Unit(configparser.ConfigParser):
    def optionxform(self, optionstr):
        return optionstr


def read_unit(path):
    found = Unit(strict=True, interpolation=None)
    found.read_string(path.read_text())
    return found


def parsed(words):
    """What the command line makes of some words, which is not carried out."""
    name, *rest = words
    command = typer.main.get_command(app).commands[name]
    return command.make_context(name, rest).params


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)
def test_unit_starts_a_command_that_there_is_and_stays_in_its_bounds(path):
    service = read_unit(path)["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/secureafl/bin/secureafl"
    given = parsed(words)
    if words[0] == "serve":
        assert str(given["out"]).startswith(f"/var/lib/{service['StateDirectory']}/")
        assert int(service["TimeoutStopSec"]) > 110  # what a SuperLink that hangs may take
        assert service["SuccessExitStatus"] == "130"
    else:
        assert given["key"]
        assert given["ca"]
    assert service["RestartPreventExitStatus"] == "2"
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == service["PrivateTmp"] == "yes"
    assert service["User"] != "root"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)
def test_systemd_understands_the_unit(path, tmp_path):
    text = path.read_text().replace("/opt/secureafl/bin/secureafl", sys.executable)
    (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert [line for line in done.stderr.splitlines() if path.name in line] == []


def instructions():
    """Keyword and rest of every line of the container file, continued ones put together."""
    text = (FOLDER / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def test_container_runs_the_server_without_root():
    found = instructions()
    last = dict(found[[key for key, _ in found].index("FROM", 1) :])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    given = parsed(json.loads(last["CMD"]))
    assert str(given["out"]).startswith("/data/")
    assert last["EXPOSE"] == given["address"].split(":")[1]
    copied = [rest.split()[0] for key, rest in found if key == "COPY" and "--from" not in rest]
    assert copied == ["."]
    assert json.loads(last["ENTRYPOINT"]) == ["/opt/secureafl/bin/secureafl"]


@pytest.mark.parametrize(("problems", "code"), [([], 0), (["no server app is at work"], 1)])
def test_health_check_of_the_container_sees_what_health_says(problems, code):
    (check,) = [rest for key, rest in instructions() if key == "HEALTHCHECK"]
    words = json.loads(check.partition("CMD ")[2])
    monitor = Monitor(lambda: FINE._replace(problems=problems), 0)
    source = words[2].replace("9464", str(monitor.port))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=False)
    monitor.close()
    assert done.returncode == code


def test_alerts_are_about_things_that_are_measured():
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    families = [*Metrics().registry.collect(), *_Collector(lambda: FINE).collect()]
    known = {f.name + suffix for f in families for suffix in ("", "_total")}
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) >= 8
    for rule in group["rules"]:
        used = set(re.findall(r"secureafl_\w+", rule["expr"]))
        assert used <= known, rule["alert"]
        assert used or rule["alert"] == "SecureAflDown"
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(re.findall(r"secureafl_\w+", rule["annotations"]["summary"])) <= known
