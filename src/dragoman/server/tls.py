"""TLS of a server: its certificate, the authorities of its clients, and files that change while it runs."""

from __future__ import annotations

import logging
import ssl
from functools import partial

from dragoman.auth.secrets import FileChanges

log = logging.getLogger(__name__)


def server_context(
    certificate: str, key: str | None = None, *, client_ca: str | None = None, required: bool = True
) -> ssl.SSLContext:
    """TLS 1.2 and newer. `client_ca`: the authorities of client certificates; `required`: every client must have one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        # A resumed session has no certificate, so it could outlive the authority that signed the certificate.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


class ServerTls:
    """TLS that follows its files: new connections use the certificate and the authorities that the files have now.

    Files that do not fit together are ignored, because they may be half written.
    """

    def __init__(
        self, certificate: str, key: str | None = None, *, client_ca: str | None = None, required: bool = True
    ) -> None:
        self._make = partial(server_context, certificate, key, client_ca=client_ca, required=required)
        self._changes = FileChanges(*filter(None, (certificate, key, client_ca)))
        self.context = self._newest = self._make()
        self.context.sni_callback = self._choose
        """The context of the listener. Each connection continues with the newest one."""

    def renew(self) -> None:
        """Read the files again, if they have changed."""
        if not self._changes.found():
            return
        try:
            self._newest = self._make()
            log.info("the certificate has changed; new connections use the new one")
        except (OSError, ValueError) as error:
            log.error("the certificate has changed and cannot be used, the old one stays: %s", error)

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest
