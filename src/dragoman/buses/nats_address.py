"""Where NATS servers are, and how they are reached."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from nats.aio.client import Client
from nats.errors import Error

SUBJECT = "dragoman"
_SAY = "a bus of NATS is nats://host:4222, nats://host/subject, or with ?credentials=FILE"


class Address:
    """`nats://host:4222`, or `tls://`; several servers with commas between them; then the subject to speak on, which keeps
    two installations apart: `nats://a,b/shop`. `?credentials=FILE` for those who have one.

    Who we are is said to every server, also to those of a cluster that only its servers tell us of.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            words = dict(parse_qsl(parts.query, keep_blank_values=True))
            people, hosts = zip(*map(_server, parts.netloc.split(",")), strict=True)
            ports = [urlsplit(f"//{host}").port for host in hosts]
        except ValueError:  # which may show the url, and a password in it
            raise ValueError(_SAY) from None
        self.subject = parts.path.strip("/") or SUBJECT
        self.servers = [f"{parts.scheme}://{host}" for host in hosts]
        self.options: dict[str, Any] = _identity({*people} - {""})
        if credentials := words.pop("credentials", ""):
            if find_spec("nkeys") is None:
                raise ValueError("credentials of NATS need an extra: pip install 'nats-py[nkeys]'")
            self.options["user_credentials"] = credentials
        named = re.fullmatch(r"[\w-]+(\.[\w-]+)*", self.subject, re.ASCII)
        if (
            words
            or parts.fragment
            or not named
            or 0 in ports
            or not all(urlsplit(f"//{host}").hostname for host in hosts)
        ):
            raise ValueError(_SAY)


def _server(text: str) -> tuple[str, str]:
    """Who we are there, and where that is."""
    who, _, host = text.rpartition("@")
    return who, host


def _identity(people: set[str]) -> dict[str, str]:
    if not people:
        return {}
    if len(people) > 1:
        raise ValueError("the servers of a bus of NATS take the same name and password")
    user, colon, password = people.pop().partition(":")
    if not colon:
        return {"token": unquote(user)}
    return {"user": unquote(user), "password": unquote(password)}


class Encrypted(Client):
    """A client to which `tls://` is a condition. The library takes it for a wish: what the server says would decide."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server is not None and server.uri.scheme == "tls":
            if not (info.get("tls_required") or info.get("tls_available")):
                raise Error("the server does not speak TLS")
            info["tls_required"] = True  # before it is told who we are
        await super()._process_info(info, initial_connection)
