"""Channels: connections to a gRPC server, plain or over TLS.

A channel connects by itself, and again whenever its connection breaks. Where a guard decides which addresses may be
connected to, the channel gets those and no name, so that nothing is looked up a second time.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from grpc import aio

from dragoman.client.credentials import ClientCertificate
from dragoman.client.transport.network import HERE
from dragoman.client.transport.transport import MAX_BODY

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
    addresses: Sequence[str] = (),
) -> aio.Channel:
    """`grpc://host:port` is plain, `grpcs://host:port` is TLS: `tls` says whom to believe, `certificate` who we are.

    `proxy` overrides the one of the environment, as over HTTP: "" means none, and none is used on this machine.
    `addresses`: connect to these, without a proxy, and call the server by the name in `url` all the same.
    """
    parts = urlsplit(url)
    options: list[tuple[str, Any]] = list(_OPTIONS)
    target = f"dns:///{parts.netloc}"  # or a host that is called "unix" would be a file
    if addresses:
        target = _literal(addresses, parts.port or 443)
        options += [("grpc.enable_http_proxy", 0), ("grpc.default_authority", parts.netloc)]
        if parts.scheme == "grpcs":
            options.append(("grpc.ssl_target_name_override", parts.hostname))
    elif proxy:
        options.append(("grpc.http_proxy", proxy))
    elif proxy == "" or parts.hostname in HERE:
        options.append(("grpc.enable_http_proxy", 0))
    if parts.scheme == "grpc":
        return aio.insecure_channel(target, options=options)
    return aio.secure_channel(target, _credentials(tls, certificate), options=options)


def _literal(addresses: Sequence[str], port: int) -> str:
    """A target of addresses that needs no look-up. One target is of one family, so IPv4 among IPv6 is written as IPv6."""
    read = [ip_address(each) for each in addresses]
    if all(each.version == 4 for each in read):
        return "ipv4:" + ",".join(f"{each}:{port}" for each in read)
    written = (f"::ffff:{each}" if each.version == 4 else str(each) for each in read)
    return "ipv6:" + ",".join(f"[{each}]:{port}" for each in written)


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
