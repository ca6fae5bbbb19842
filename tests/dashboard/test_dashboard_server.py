import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from dashboard.folders import arrival, evaluation, events, lines, write_run

from secureafl.cli.dashboard import dashboard
from secureafl.core.errors import ConfigError, RunError
from secureafl.dashboard import server as dashboard_server
from secureafl.dashboard.access import Access, is_loopback
from secureafl.dashboard.messages import Place
from secureafl.dashboard.server import Dashboard

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def serve():
    """Starts a dashboard; all are closed at the end."""
    started = []

    def start(root: Path, token: str | None = None) -> Dashboard:
        server = Dashboard(root, "127.0.0.1", 0, token)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def ask(server: Dashboard, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    return connection.getresponse()


def told(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, dict]]:
    """Kind, id and data of each server-sent event."""
    fields: dict[str, str] = {}
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
            fields = {}


def first_of(answer: http.client.HTTPResponse, kind: str) -> tuple[str, dict]:
    return next((id_, data) for found, id_, data in told(answer) if found == kind)


def test_page_and_all_it_needs_come_from_here_under_a_strict_policy(tmp_path, serve):
    server = serve(write_run(tmp_path / "run", events(50, 5), 50, 5))
    page = ask(server, "/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = page.read().decode()
    assert "//" not in text.replace("<!doctype html>", "")
    for path in ("/app.js", "/app.css", "/look.css", "/look.js", "/uPlot.esm.js", "/favicon.svg"):
        answer = ask(server, path)
        assert answer.status == 200, path
        assert len(answer.read()) > 50
    for path in ("/nothing", "/../server.py", "/static/app.js", "/%2e%2e/server.py"):
        assert ask(server, path).status == 404, path


def test_stream_tells_all_of_a_run_then_what_is_new(tmp_path, serve):
    path = write_run(tmp_path / "run", events(300, 10), 300, 10)
    answer = ask(serve(path), "/api/stream")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    stream = (event for event in told(answer) if event[0] == "run")
    _, _, whole = next(stream)
    assert whole["head"]["rounds"] == 300
    assert whole["curves"]["round"] == [0, 100, 200]
    assert whole["settings"]["defense.kind"] == "secure_afl"
    assert len(whole["lanes"]["rows"]) == 10
    assert {row["client"] for row in whole["lanes"]["rows"][:2]} == {0, 1}
    assert whole["suspects"] == "2 of 10 clients stand out: 0, 1"
    assert "malicious: 2; among the 2 most suspicious: 2." in whole["explanation"]
    with (path / "events.jsonl").open("a") as file:
        file.write(lines([evaluation(300, ter=0.1, asr=0.0), arrival(300)]))
    _, _, more = next(stream)
    assert (more["curves"]["start"], more["curves"]["round"]) == (3, [300])
    assert more["scores"]["start"] == 300
    assert len(more["scores"]["round"]) == 1


def test_reader_who_comes_back_is_told_only_what_is_missing(tmp_path, serve):
    path = write_run(tmp_path / "run", events(300, 10), 300, 10)
    server = serve(path)
    id_, _ = first_of(ask(server, "/api/stream"), "run")
    _, data = first_of(ask(server, "/api/stream", Last_Event_ID=id_), "run")
    assert (data["curves"]["start"], data["curves"]["round"]) == (3, [])
    (path / "events.jsonl").write_text(lines([arrival(0), evaluation(1, ter=0.5)]))
    _, data = first_of(ask(server, "/api/stream", Last_Event_ID=id_), "run")
    assert (data["curves"]["start"], data["curves"]["round"]) == (0, [1])
    for strange in ("x", "a|b", id_.replace("|", "||"), id_[:-3] + "99.-5"):
        _, data = first_of(ask(server, "/api/stream", Last_Event_ID=strange), "run")
        assert data["curves"]["start"] == 0


def test_several_runs_are_laid_over_each_other_and_listed(tmp_path, serve):
    write_run(tmp_path / "all" / "one", events(100, 5), 100, 5)
    write_run(tmp_path / "all" / "deeper" / "two", events(100, 5), 100, 5)
    server = serve(tmp_path / "all")
    query = f"/api/stream?run=one&with={quote('deeper/two', safe='')}&with=no-such"
    found = told(ask(server, query))
    kind, _, listed = next(found)
    assert (kind, [one["name"] for one in listed["runs"]]) == ("runs", ["deeper/two", "one"])
    front, other = next(found)[2], next(found)[2]
    assert (front["head"]["name"], other["head"]["name"]) == ("one", "deeper/two")
    assert "lanes" in front
    assert "lanes" not in other
    assert other["curves"]["round"] == [0]
    assert ask(server, "/api/stream?run=..").status == 404


def test_list_tells_how_each_run_fares(tmp_path, serve):
    done = write_run(tmp_path / "done", events(100, 5), 100, 5)
    uploads = {"honest": {"share": 0.9}, "malicious": {"share": None, "received": 1}}
    text = (done / "experiment.toml").read_text()
    (done / "experiment.toml").write_text(text.replace("gaussian", "none"))
    result = {"metrics": {"ter": {"late_mean": 0.25}, "asr": {"late_mean": None}}}
    (done / "result.json").write_text(json.dumps(result | {"uploads": uploads}))
    write_run(tmp_path / "going", [evaluation(3, ter=0.5), *[arrival(i) for i in range(500)]], 9, 5)
    damaged = write_run(tmp_path / "damaged", [arrival(0)], 9, 5)
    (damaged / "result.json").write_text('{"metrics": 3, "uploads": []}')
    _, listed = first_of(ask(serve(tmp_path), "/api/stream?run=done"), "runs")
    attacks = {one["name"]: one["attack"] for one in listed["runs"]}
    assert (attacks["done"], attacks["going"]) == ("attacks by clients", "gaussian")
    found = {one["name"]: (one["metrics"], one["accepted"]) for one in listed["runs"]}
    assert found == {
        "done": ({"ter": 0.25, "asr": None}, {"honest": 0.9, "malicious": None}),
        "going": ({"ter": 0.5}, {}),
        "damaged": ({}, {}),
    }


def test_client_stream_holds_its_history_alone(tmp_path, serve):
    path = write_run(tmp_path / "run", events(400, 10), 400, 10)
    server = serve(path)
    _, data = first_of(ask(server, "/api/client?run=run&client=1"), "client")
    wanted = [e for e in events(400, 10) if e["event"] == "arrival" and e["client"] == 1]
    assert data["round"] == [event["round"] for event in wanted]
    assert data["lane"]["uploads"] == len(wanted)
    assert data["lane"]["rank"] <= 2
    _, nobody = first_of(ask(server, "/api/client?run=run&client=77"), "client")
    assert nobody["round"] == []
    assert nobody["lane"] is None
    for query in ("run=run&client=-1", "run=run&client=x", "run=other&client=1", ""):
        assert ask(server, f"/api/client?{query}").status == 404


def test_new_run_in_an_empty_folder_turns_up(tmp_path, serve, monkeypatch):
    monkeypatch.setattr("secureafl.dashboard.runs._SEARCH_SECONDS", 0.0)
    monkeypatch.setattr("secureafl.dashboard.streams._LIST_SECONDS", 0.2)
    found = told(ask(serve(tmp_path), "/api/stream"))
    assert next(found)[2] == {"runs": [], "unreadable": []}
    write_run(tmp_path / "run", events(10, 2), 10, 2)
    assert [one["name"] for one in next(found)[2]["runs"]] == ["run"]


def test_only_this_machines_names_are_served_without_a_token(tmp_path, serve):
    server = serve(tmp_path)
    port = server.server_address[1]
    for name in (f"localhost:{port}", f"[::1]:{port}", "127.0.0.1", "[::1]"):
        assert ask(server, "/", Host=name).status == 200, name
    for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1", ""):
        assert ask(server, "/", Host=name).status == 403, name


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_any_other_address_is_served_with_a_token_or_not_at_all(tmp_path, host):
    with pytest.raises(ConfigError, match="a token is needed"):
        Dashboard(tmp_path, host, 0, None)
    for weak in ("", "short", "with spaces and; more", "x" * 300):
        with pytest.raises(ConfigError, match="token is unfit"):
            Dashboard(tmp_path, host, 0, weak)


def test_command_makes_up_a_token_for_other_addresses(tmp_path, monkeypatch):
    asked = []

    class Fake:
        address = "http://…"

        def __init__(self, *details):
            asked.append(details)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def serve_forever(self):
            pass

    monkeypatch.setattr("secureafl.dashboard.server.Dashboard", Fake)
    monkeypatch.delenv("SECUREAFL_TOKEN", raising=False)
    for host in ("127.0.0.1", "0.0.0.0", "0.0.0.0"):
        dashboard(tmp_path, host, 0)
    monkeypatch.setenv("SECUREAFL_TOKEN", TOKEN)
    dashboard(tmp_path, "127.0.0.1", 0)
    local, first, second, given = (details[-1] for details in asked)
    assert (local, given) == (None, TOKEN)
    assert first != second
    assert len(first) >= 32


def test_without_the_token_nothing_is_told(tmp_path, serve):
    server = serve(tmp_path, token=TOKEN)
    for path in ("/", "/app.js", "/api/stream", "/api/client?run=x", "/?token=wrong", "/?token="):
        answer = ask(server, path)
        assert answer.status == 403, path
        assert TOKEN.encode() not in answer.read()
    assert ask(server, "/", Authorization=f"Bearer {TOKEN}").status == 200
    assert ask(server, "/", Authorization=f"Bearer {TOKEN.upper()}").status == 403
    answer = ask(server, f"/?token={TOKEN}&run=a%0d%0ab")
    assert (answer.status, answer.headers["Location"]) == (303, "/?run=a%0D%0Ab")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask(server, "/", Cookie=cookie.split(";")[0]).status == 200


def test_names_of_headers_may_be_written_small(tmp_path, serve):
    server = serve(tmp_path, token=TOKEN)
    assert ask(server, "/", authorization=f"Bearer {TOKEN}").status == 200
    assert ask(server, "/", cookie=f"secureafl_token={TOKEN}").status == 200
    assert not Access(None).refusal({"host": "127.0.0.1"}, {})


@pytest.mark.parametrize("path", ["http://[", "/?" + "&".join(f"a{n}=1" for n in range(60))])
def test_address_that_makes_no_sense_is_refused_without_a_traceback(
    tmp_path, serve, path, monkeypatch
):
    raised = []
    monkeypatch.setattr(Dashboard, "handle_error", lambda *words: raised.append(words))
    place = "127.0.0.1", serve(tmp_path, token=TOKEN).server_address[1]
    with socket.create_connection(place, 10) as line:
        line.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert b" 400 " in line.makefile("rb").readline()
    assert raised == []


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "192.168.0.1", "example.org", "")],
)
def test_loopback_is_told_from_the_rest(host, local):
    assert is_loopback(host) == local


def test_strange_cookies_and_texts_are_just_refused():
    access = Access("tökén")
    assert access.refusal({"Cookie": "=;;=\x00;secureafl_token"}, {})
    assert access.refusal({"Authorization": "Bearer é"}, {"token": ["?"]})
    assert not access.refusal({}, {"token": ["tökén"]})


def test_taken_port_and_missing_folder_are_clear(tmp_path, serve):
    port = serve(tmp_path).server_address[1]
    with pytest.raises(ConfigError, match=f"port {port}: cannot be served"):
        Dashboard(tmp_path, "127.0.0.1", port, None)
    with pytest.raises(RunError, match="no such folder"):
        Dashboard(tmp_path / "nothing", "127.0.0.1", 0, None)


def connect(server: Dashboard) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=5)


def test_request_that_trickles_in_is_given_up(tmp_path, serve, monkeypatch):
    monkeypatch.setattr(dashboard_server, "_HEAD_SECONDS", 0.5)
    server = serve(write_run(tmp_path / "run", events(10, 5), 10, 5))
    with connect(server) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        began = time.monotonic()
        with contextlib.suppress(OSError):  # it is closed while we write
            while time.monotonic() - began < 5:
                line.sendall(b"X: y\r\n")
                time.sleep(0.05)
        assert time.monotonic() - began < 3
    stream = ask(server, "/api/stream")
    time.sleep(0.7)
    assert first_of(stream, "run")[1]["head"]["rounds"] == 10, "an open page has no such limit"


def test_connections_beyond_the_limit_are_closed_and_room_comes_back(tmp_path, serve, monkeypatch):
    monkeypatch.setattr(dashboard_server, "_MOST_CONNECTIONS", 3)
    server = serve(write_run(tmp_path / "run", events(10, 5), 10, 5))
    stalled = [connect(server) for _ in range(3)]
    time.sleep(0.2)
    with connect(server) as further:
        assert further.recv(1) == b""
    assert server.connections.acquire(blocking=False) is False
    for line in stalled:
        line.close()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ask(server, "/").status == 200:
                return
    pytest.fail("no room came back")


@pytest.mark.parametrize("text", ["", "1", "1.2.3.4.5.6.7", "-9.-9.0.0.0.0.0", "a.b.c.d.e.f.g"])
def test_place_survives_any_text(text):
    place = Place.from_text(text)
    assert Place.from_text(place.as_text()) == place
