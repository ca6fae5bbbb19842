"""Certificates of a server are renewed by the same authority, and taken while it is served."""

import datetime
import ssl

import pytest
from simulation.small import tiny
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.core.errors import ConfigError
from secureafl.deployment import keys
from secureafl.deployment import serve as module
from secureafl.deployment.keys import (
    certificate_fits,
    load_certificate,
    make_certificates,
    renew_certificate,
)
from secureafl.deployment.options import Options
from secureafl.deployment.processes import free_port
from secureafl.deployment.serve import Address, Service


@pytest.fixture
def folder(tmp_path):
    make_certificates(tmp_path / "certs", ["learn.example.org", "10.1.2.3"])
    return tmp_path / "certs"


def trusted(folder, host):
    """Whether a client that has the first ca.crt believes a server with the files of now."""
    server, client = (ssl.SSLContext(p) for p in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client.load_verify_locations(folder / "ca.crt")
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    ends = [
        server.wrap_bio(pipes[0], pipes[1], server_side=True),
        client.wrap_bio(pipes[1], pipes[0], server_hostname=host),
    ]
    for _ in range(4):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return True


def test_renewed_certificate_is_another_of_the_same_authority_for_the_same_hosts(folder):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    done = CliRunner().invoke(app, ["keys", "renew", str(folder)])
    assert "good until" in done.output
    after = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert {n for n in before if before[n] != after[n]} == {"server.crt", "server.key"}
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600
    assert trusted(folder, "learn.example.org")
    assert trusted(folder, "10.1.2.3")
    assert not trusted(folder, "other.example.org")
    renew_certificate(folder, ["other.example.org"])
    assert trusted(folder, "other.example.org")


def test_certificate_does_not_outlive_its_authority_and_an_ended_one_is_told(folder, monkeypatch):
    far = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3000)
    monkeypatch.setattr(keys, "_now", lambda: far)
    ends = renew_certificate(folder, [])
    assert ends == load_certificate(folder / "ca.crt").not_valid_after_utc
    monkeypatch.setattr(keys, "_now", lambda: far + datetime.timedelta(days=1000))
    with pytest.raises(ConfigError, match=r"ca\.crt: has ended"):
        renew_certificate(folder, [])


def test_without_the_authoritys_key_it_is_named(folder):
    (folder / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key: No such file.*put it there"):
        renew_certificate(folder, [])
    (folder / "ca.key").write_bytes((folder / "server.key").read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key: not the key of ca\.crt"):
        renew_certificate(folder, [])


def test_replaced_certificate_is_taken_while_serving_and_an_end_is_told(
    folder, tmp_path, monkeypatch, capsys
):
    ended = []
    monkeypatch.setattr(module, "stop", ended.append)
    address = Address("127.0.0.1", free_port(), folder)
    service = Service(tiny(), Options(), tmp_path / "run", address)
    service._check_certificate()
    service._check_certificate()
    assert ended == []
    assert service.examine().certificate_seconds > 800 * 86400
    old_key = (folder / "server.key").read_bytes()
    monkeypatch.setattr(keys, "_DAYS", 20)
    renew_certificate(folder, [])
    new_key = (folder / "server.key").read_bytes()
    (folder / "server.key").write_bytes(old_key)  # only one of the two is there yet
    assert not certificate_fits(folder)
    service._check_certificate()
    assert ended == []
    (folder / "server.key").write_bytes(new_key)
    for _ in range(3):
        service._check_certificate()
    assert len(ended) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.split(";")[0].split(",")[0][:21] for line in said] == [
        "certificate: replaced",
        "certificate: ends on ",
    ]
    service.stop()
