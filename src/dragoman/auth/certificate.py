"""What a client certificate says: whose it is, and when it counts."""

from __future__ import annotations

import hashlib

from cryptography import x509


class Certificate:
    def __init__(self, der: bytes) -> None:
        read = x509.load_der_x509_certificate(der)
        self.fingerprint = hashlib.sha256(der).digest()
        self.begins = read.not_valid_before_utc.timestamp()
        self.ends = read.not_valid_after_utc.timestamp()
        subject = read.subject.rfc4514_string()
        self.holder = _spiffe(read) or (f"x509:{subject}" if subject else "")


def _spiffe(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ""
    found = [
        uri
        for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
        if uri.startswith("spiffe://")
    ]
    return found[0] if len(found) == 1 else ""
