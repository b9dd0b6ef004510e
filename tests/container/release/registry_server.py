"""A real docker-registry of the distribution's package, started by hand on loopback."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.programs import free_port, require_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = "docker-registry"
USER, PASSWORD = "releaser", "only-for-tests"
#: bcrypt of PASSWORD, the only hash that the registry takes.
HTPASSWD = "releaser:$2y$05$ticM7bj1GjVjw6ikiYHIxe1Iukco7nnJKmGG0eEMpDQ4RwP/owC3e\n"


def install_registry() -> None:
    """Install the registry's package where it is missing."""
    require_program(PROGRAM, PROGRAM)


@dataclass(frozen=True)
class Authority:
    """An own certificate authority.

    Attributes:
        ca_file: What clients believe.
        certificate: Of the server at 127.0.0.1.
        key: Its private key.
    """

    ca_file: Path
    certificate: Path
    key: Path


def make_authority(directory: Path) -> Authority:
    """Make an authority and a certificate for loopback."""
    directory.mkdir(parents=True, exist_ok=True)
    day = timedelta(days=1)
    now = datetime.now(UTC)

    def build(name: str, issuer: str) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = (
        build("test authority", "test authority")
        .public_key(ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    leaf = (
        build("127.0.0.1", "test authority")
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    authority = Authority(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    authority.ca_file.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    authority.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    authority.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return authority


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True)
class Server:
    """A running registry.

    Attributes:
        host: `127.0.0.1:<port>`.
        directory: Configuration, log and storage.
        storage: Where it keeps its content.
    """

    host: str
    directory: Path
    storage: Path

    def collect_garbage(self, *options: str) -> str:
        """Run the registry's own garbage collection."""
        done = subprocess.run(
            [PROGRAM, "garbage-collect", *options, str(self.directory / "config.yml")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@contextmanager
def serve(
    directory: Path,
    *,
    tls: Authority | None = None,
    auth: dict[str, Any] | None = None,
    storage: Path | None = None,
) -> Iterator[Server]:
    """Run a registry until the block ends.

    Args:
        directory: For its files.
        tls: Speak HTTPS with this certificate.
        auth: The `auth` part of its configuration.
        storage: Where it keeps its content.
    """
    directory.mkdir(parents=True, exist_ok=True)
    root = storage or directory / "storage"
    port = free_port()
    http: dict[str, Any] = {"addr": f"127.0.0.1:{port}", "secret": "only-for-tests"}
    if tls:
        http["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(root)}, "delete": {"enabled": True}},
        "http": http,
        **({"auth": auth} if auth else {}),
    }
    (directory / "config.yml").write_text(yaml.safe_dump(config))
    with (directory / "registry.log").open("wb") as log:
        child = subprocess.Popen(
            [PROGRAM, "serve", str(directory / "config.yml")], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait(f"http{'s' if tls else ''}://127.0.0.1:{port}/v2/", child, directory / "registry.log", tls)
            yield Server(f"127.0.0.1:{port}", directory, root)
        finally:
            child.terminate()
            child.wait(20)


def _wait(url: str, child: subprocess.Popen[bytes], log: Path, tls: Authority | None) -> None:
    for _ in range(200):
        assert child.poll() is None, f"the registry ended: {log.read_text()}"
        try:
            requests.get(url, timeout=5, verify=str(tls.ca_file) if tls else True)
        except requests.exceptions.ConnectionError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"the registry does not answer: {log.read_text()}")


def htpasswd_auth(directory: Path) -> dict[str, Any]:
    """The `auth` part for one user with a password."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "htpasswd"
    file.write_text(HTPASSWD)
    return {"htpasswd": {"realm": "tests", "path": str(file)}}
