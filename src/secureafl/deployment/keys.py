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
from secureafl.core.files import put_file, put_private_file
from secureafl.runs.layout import SERVER, is_deployed

KEYS = Path(SERVER) / "keys"
CA, CERTIFICATE, SERVER_KEY = "ca.crt", "server.crt", "server.key"
_CA_KEY = "ca.key"
_PLAIN = serialization.PrivateFormat.TraditionalOpenSSL
_DAYS, _AUTHORITY_DAYS = 825, 3650  # a certificate and its authority are good for


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
    authority = ec.generate_private_key(ec.SECP384R1())
    issuer = _name("SecureAFL certificate authority")
    ends = _now() + datetime.timedelta(days=_AUTHORITY_DAYS)
    root = (
        _builder(issuer, issuer, authority, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    _write_private(folder / _CA_KEY, _private(authority, _PLAIN))
    put_file(folder / CA, root.public_bytes(serialization.Encoding.PEM))
    _make_server(folder, hosts, root, authority)


def renew_certificate(folder: Path, hosts: list[str]) -> datetime.datetime:
    """Another key and certificate of the server by the same authority; when it ends.

    Without `hosts` they are those of the certificate that is there.
    """
    root = load_certificate(folder / CA)
    try:
        key = serialization.load_pem_private_key((folder / _CA_KEY).read_bytes(), None)
    except OSError as error:
        remedy = "put it there for as long as this takes"
        raise ConfigError(f"{folder / _CA_KEY}: {error.strerror}; {remedy}") from None
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != root.public_key():
        raise ConfigError(f"{folder / _CA_KEY}: not the key of {CA}")
    if _now() > root.not_valid_after_utc:
        raise ConfigError(f"{folder / CA}: has ended; make another with 'secureafl keys ca'")
    return _make_server(folder, hosts or _hosts(load_certificate(folder / CERTIFICATE)), root, key)


def _make_server(
    folder: Path, hosts: list[str], root: x509.Certificate, authority: ec.EllipticCurvePrivateKey
) -> datetime.datetime:
    key = ec.generate_private_key(ec.SECP384R1())
    names = dict.fromkeys([*hosts, "127.0.0.1", "localhost"])
    ends = min(_now() + datetime.timedelta(days=_DAYS), root.not_valid_after_utc)
    server = (
        _builder(_name(hosts[0] if hosts else "localhost"), root.subject, key, ends)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .sign(authority, hashes.SHA384())
    )
    put_private_file(folder / SERVER_KEY, _private(key, _PLAIN))
    put_file(folder / CERTIFICATE, server.public_bytes(serialization.Encoding.PEM))
    return ends


def load_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no certificate ({error}); see 'secureafl keys ca'") from None


def certificate_fits(folder: Path) -> bool:
    """Whether the server's certificate is that of its key; they are replaced one by one."""
    try:
        key = serialization.load_pem_private_key((folder / SERVER_KEY).read_bytes(), None)
        return key.public_key() == load_certificate(folder / CERTIFICATE).public_key()
    except (OSError, ValueError, ConfigError):
        return False


def _hosts(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in found.value]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ends: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(minutes=5))
        .not_valid_after(ends)
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
