"""Keys of nodes, and certificates of a server; a folder of public keys says who may join.

A server serves the nodes whose keys lie in its run folder's `server/keys`: putting a file there
registers a node, taking it away revokes it. `deployment.members` keeps Flower's own list equal.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from secureafl.core.errors import ConfigError, RunError
from secureafl.core.files import put_file
from secureafl.runs.layout import SERVER, is_deployed

KEYS = Path(SERVER) / "keys"
CA, CERTIFICATE, SERVER_KEY = "ca.crt", "server.crt", "server.key"
_CA_KEY = "ca.key"
_DAYS = 825


def make_key(path: Path) -> Path:
    """A private key at `path`, its public part beside it with .pub; the path of that."""
    public = path.with_name(f"{path.name}.pub")
    for taken in (path, public):
        if taken.exists():
            raise ConfigError(f"{taken}: already there; choose another name")
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    _write_private(path, _private(key, openssh))
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public.write_bytes(key.public_key().public_bytes(*form) + b"\n")
    return public


def register(public: Path, run: Path) -> Path:
    """Let the owner of a public key join a run."""
    load_public(public)
    place = _keys(run) / public.name
    put_file(place, public.read_bytes())  # a server that reads half of it would revoke the key
    return place


def load_public(path: Path) -> ec.EllipticCurvePublicKey:
    """The public key in a file."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path}: not a public key; make one with 'secureafl keys make'")
    return key


def revoke(name: str, run: Path) -> Path:
    """No longer let the owner of a key take part."""
    place = _keys(run) / f"{name.removesuffix('.pub')}.pub"
    if not place.is_file():
        known = ", ".join(sorted(p.stem for p in _keys(run).glob("*.pub"))) or "none"
        raise ConfigError(f"{name}: no such key is registered; registered: {known}")
    place.unlink()
    return place


def _keys(run: Path) -> Path:
    if not is_deployed(run):
        raise RunError(f"{run}: no such run folder of a server; 'secureafl serve' makes it")
    place = run / KEYS
    place.mkdir(exist_ok=True)
    return place


def make_certificates(folder: Path, hosts: list[str]) -> None:
    """A certificate authority of one's own, and a server certificate for some hosts."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: not empty; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    authority, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = _name("SecureAFL certificate authority")
    root = (
        _builder(issuer, issuer, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    names = dict.fromkeys([*hosts, "127.0.0.1", "localhost"])
    server = (
        _builder(_name(hosts[0] if hosts else "localhost"), issuer, key)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
    )
    plain = serialization.PrivateFormat.TraditionalOpenSSL
    _write_private(folder / _CA_KEY, _private(authority, plain))
    _write_private(folder / SERVER_KEY, _private(key, plain))
    for name, made in ((CA, root), (CERTIFICATE, server)):
        signed = made.sign(authority, hashes.SHA384())
        (folder / name).write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)
