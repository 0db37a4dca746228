"""The `Authenticator` of an agent: its requirements, asked before a request's body is read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dragoman.auth.presented import Presented
from dragoman.auth.requirements import Requirements
from dragoman.auth.schemes import Fetch
from dragoman.errors import Unavailable
from dragoman.model.ops import Principal


async def no_fetch(url: str, form: Mapping[str, str] | None = None, authorization: str = "") -> bytes:
    raise Unavailable("this server has no way to fetch keys")


class Guard:
    def __init__(self, requirements: Requirements, *, realm: str, fetch: Fetch = no_fetch) -> None:
        self._requirements, self._fetch = requirements, fetch
        self.challenge = requirements.challenges(re.sub(r"[^ !#-\[\]-~]", "", realm))

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        return await self._requirements.principal(Presented(headers, query, certificate), self._fetch)
