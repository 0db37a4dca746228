"""A certificate authority for tests."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOW = datetime.datetime.now(datetime.UTC)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._issue("an authority", self._key.public_key(), ca=True)

    def _issue(self, name: str, key: ec.EllipticCurvePublicKey, *, ca: bool = False) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name("an authority"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - datetime.timedelta(hours=1))
            .not_valid_after(_NOW + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name.replace(" ", "-"))]), False
            )
        return builder.sign(self._key, hashes.SHA256())

    def files(self, name: str, directory: Path) -> str:
        """A certificate for `name` and its key, in one PEM file."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = self._issue(name, key.public_key()).public_bytes(serialization.Encoding.PEM)
        pem += key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = directory / "certificate.pem"
        path.write_bytes(pem)
        return str(path)

    @property
    def pem(self) -> str:
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def client(self) -> ssl.SSLContext:
        """A context that trusts this authority and nobody else."""
        return ssl.create_default_context(cadata=self.pem)

    def server(self, name: str, *, ask: bool = False, insist: bool = True) -> ssl.SSLContext:
        """A server's context; `ask` it for client certificates of ours."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.TemporaryDirectory() as directory:
            context.load_cert_chain(self.files(name, Path(directory)))
        if ask:
            context.verify_mode = ssl.CERT_REQUIRED if insist else ssl.CERT_OPTIONAL
            context.load_verify_locations(cadata=self.pem)
        return context
