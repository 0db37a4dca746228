"""TLS for a server: what it shows, whom it believes, and what it tells the application of a client's certificate.

The application hears of it as ASGI's TLS extension has it, so any server that speaks that extension will do.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any

from dragoman.auth.filed import stamp_of

log = logging.getLogger(__name__)


def server_context(
    certificate: str, key: str | None = None, *, client_ca: str | None = None, required: bool = True
) -> ssl.SSLContext:
    """TLS 1.2 and up. `client_ca`: whose client certificates are good; `required`: nobody comes in without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        # A session that is taken up again shows no certificate: it would outlive the authority that signed it.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


class ServerTls:
    """TLS that follows its files: new connections are shown the certificate that is there by now, and asked for one of
    those whom the authorities that are there by now have signed.

    Files that do not go together are left alone, as they may be half written.
    """

    def __init__(
        self, certificate: str, key: str | None = None, *, client_ca: str | None = None, required: bool = True
    ) -> None:
        self._files = [file for file in (certificate, key, client_ca) if file]
        self._make = partial(server_context, certificate, key, client_ca=client_ca, required=required)
        self._stamp = stamp_of(*self._files)
        self.context = self._newest = self._make()
        self.context.sni_callback = self._choose
        """For a server, which knows only this one. Each connection goes on with the newest."""

    def renew(self) -> None:
        """Read the files again, if they have changed."""
        try:
            stamp = stamp_of(*self._files)
        except OSError as error:
            stamp = str(error)  # to be said once
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._newest = self._make()
            log.info("the certificate has changed; new connections get the new one")
        except (OSError, ValueError) as error:
            log.error("the certificate has changed and cannot be used, the old one stays: %s", error)

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


def client_certificate(scope: Mapping[str, Any]) -> bytes:
    """In DER; empty if there is none."""
    tls = (scope.get("extensions") or {}).get("tls")
    chain = tls.get("client_cert_chain") if tls else None
    return ssl.PEM_cert_to_DER_cert(chain[0]) if chain else b""
