"""Channels: connections to a gRPC server, plain or over TLS."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from grpc import aio

from dragoman.client.credentials import ClientCertificate
from dragoman.client.http import HERE
from dragoman.client.transport import MAX_BODY

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BODY),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel shall not find the dead connection of another
    # Whoever calls decides how long to wait before the next attempt; the channel shall be ready for it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def open_channel(
    url: str,
    *,
    tls: ssl.SSLContext | None = None,
    proxy: str | None = None,
    certificate: ClientCertificate | None = None,
) -> aio.Channel:
    """`grpc://host:port` is plain, `grpcs://host:port` is TLS: `tls` says whom to believe, `certificate` who we are.

    `proxy` overrides the one of the environment, as over HTTP: "" means none, and none is used on this machine.
    """
    parts = urlsplit(url)
    options: list[tuple[str, Any]] = list(_OPTIONS)
    if proxy:
        options.append(("grpc.http_proxy", proxy))
    elif proxy == "" or parts.hostname in HERE:
        options.append(("grpc.enable_http_proxy", 0))
    if parts.scheme == "grpc":
        return aio.insecure_channel(parts.netloc, options=options)
    return aio.secure_channel(parts.netloc, _credentials(tls, certificate), options=options)


def _credentials(tls: ssl.SSLContext | None, certificate: ClientCertificate | None) -> Any:
    key = chain = None
    if certificate is not None:
        if certificate.password is not None:
            raise ValueError("over gRPC the key of a client certificate must not need a password")
        chain = Path(certificate.certificate).read_bytes()
        key = Path(certificate.key).read_bytes() if certificate.key else chain
    return grpc.ssl_channel_credentials(_roots(tls), key, chain)


def _roots(tls: ssl.SSLContext | None) -> bytes | None:
    """The authorities that a context trusts, as PEM; None for those that everybody trusts."""
    if tls is None:
        return None
    if tls.verify_mode is not ssl.CERT_REQUIRED:
        raise ValueError(
            "gRPC cannot do without checking the server's certificate: trust its authority instead"
        )
    trusted = tls.get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, trusted)).encode() or None
