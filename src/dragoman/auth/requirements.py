"""The authentication that an agent requires: alternatives, each of one scheme or of several together.

    auth=[Bearer(...), ApiKey(...)]            one of them is enough
    auth=[All(MutualTLS(), Bearer(...))]       both are needed

One declaration gives the card and the check. If several schemes are needed together, the first one names the principal,
and the scopes of all are added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from dragoman.auth.schemes import TOKEN, Custom, Fetch, Placed, Presented, Scheme
from dragoman.errors import A2AError, Forbidden, Unauthenticated, Unavailable
from dragoman.model.card import SecurityRequirement, SecurityScheme, StringList
from dragoman.model.ops import Principal

Check = Callable[[Presented], Any]
MAX_ID_CHARS = 512


class All:
    """These schemes together."""

    def __init__(self, *schemes: Scheme | Check) -> None:
        if not schemes:
            raise ValueError("All() needs a scheme")
        self.schemes = tuple(_to_scheme(each) for each in schemes)


class Requirements:
    """The `auth` of an agent. False if the agent requires nothing."""

    def __init__(self, auth: Sequence[Scheme | Check | All] | Scheme | Check | All = ()) -> None:
        several = auth if isinstance(auth, Iterable) else (auth,)
        self._alternatives = tuple(
            each.schemes if isinstance(each, All) else (_to_scheme(each),) for each in several
        )
        self._names: dict[int, str] = {}
        self.schemes: dict[str, SecurityScheme] = {}
        """For the card."""
        for scheme in (scheme for schemes in self._alternatives for scheme in schemes):
            if id(scheme) not in self._names:
                name = _unique_name(scheme.name, self.schemes)
                self._names[id(scheme)] = name
                self.schemes[name] = scheme.declaration

    def __bool__(self) -> bool:
        return bool(self._alternatives)

    def needing(self, scopes: Iterable[str] = ()) -> tuple[SecurityRequirement, ...]:
        """For the card: what a caller needs for the agent, or for a skill with its own `scopes`."""
        extra = sorted(scopes)
        return tuple(
            SecurityRequirement(
                schemes={
                    self._names[id(scheme)]: StringList(list=tuple(dict.fromkeys((*scheme.scopes, *extra))))
                    for scheme in schemes
                }
            )
            for schemes in self._alternatives
        )

    def everybody_shows(self, kind: type[Any]) -> bool:
        """True if every alternative includes a scheme of this kind."""
        return bool(self) and all(any(isinstance(s, kind) for s in each) for each in self._alternatives)

    def somebody_shows(self, kind: type[Any]) -> bool:
        return any(isinstance(s, kind) for each in self._alternatives for s in each)

    def challenges(self, realm: str) -> str:
        """The value of `WWW-Authenticate`."""
        challenges = dict.fromkeys(s.challenge for schemes in self._alternatives for s in schemes)
        return ", ".join(_with_realm(challenge, realm) for challenge in challenges)

    async def principal(self, presented: Presented, fetch: Fetch) -> Principal:
        """The principal of these credentials. Raises `Unauthenticated`, `Forbidden` (known, but not allowed), `Unavailable`."""
        refused: A2AError | None = None
        for schemes in self._applicable(presented):
            try:
                principal = await _check_all(schemes, presented, fetch)
            except A2AError as error:
                # A known caller that lacks a scope gets that error, not one of another scheme.
                if refused is None or isinstance(refused, Unauthenticated):
                    refused = error
            else:
                if principal is not None:
                    return principal
        raise refused or Unauthenticated(f"this agent requires authentication: {', '.join(self.schemes)}")

    def _applicable(self, presented: Presented) -> Sequence[tuple[Scheme, ...]]:
        """The alternatives that check every credential in the request. Raises `Unauthenticated` if there are two that do
        not belong together: a proxy may have checked the other one.
        """
        if len(self._alternatives) < 2:
            return self._alternatives
        places_checked = [_places(schemes, presented) for schemes in self._alternatives]
        seen_places = frozenset().union(*(places for places in places_checked if places is not None))
        fitting = [
            schemes
            for schemes, places in zip(self._alternatives, places_checked, strict=True)
            if places is None or places >= seen_places
        ]
        if not fitting:
            raise Unauthenticated("there are two credentials in this request: send one")
        return fitting


def _places(schemes: tuple[Scheme, ...], presented: Presented) -> frozenset[str] | None:
    """Where credentials for these schemes are. None: they may be anywhere."""
    if not all(hasattr(scheme, "place") for scheme in schemes):
        return None
    return frozenset(cast(Placed, scheme).place(presented) for scheme in schemes) - {""}


async def _check_all(schemes: tuple[Scheme, ...], presented: Presented, fetch: Fetch) -> Principal | None:
    found: list[Principal] = []
    for scheme in schemes:
        one = await scheme.authenticate(presented, fetch)
        if one is None:
            return None
        found.append(check_principal(one))
    who = found[0]
    if len(found) > 1:
        if len({one.tenant for one in found if one.tenant}) > 1:
            raise Unauthenticated("the credentials belong to different tenants")
        who = Principal(
            id=who.id,
            tenant=next((one.tenant for one in found if one.tenant), ""),
            scopes=frozenset().union(*(one.scopes for one in found)),
            claims={name: value for one in reversed(found) for name, value in one.claims.items()},
        )
    need({scope for scheme in schemes for scope in scheme.scopes}, who)
    return who


def need(scopes: Iterable[str], principal: Principal, what: str = "this agent") -> None:
    """Raises `Forbidden`, which names the scopes that are missing."""
    if missing := sorted(set(scopes) - principal.scopes):
        raise Forbidden(f"{what} needs the scope {', '.join(missing)}", metadata={"scope": " ".join(missing)})


def check_principal(principal: Principal) -> Principal:
    """An id goes into keys, logs and headers, so it must be printable, not empty and not too long. Raises `Unauthenticated`."""
    for text in (principal.id, principal.tenant):
        if len(text) > MAX_ID_CHARS or not text.isprintable():
            raise Unauthenticated("the principal of the credentials has an invalid id")
    if not principal.id:
        raise Unauthenticated("the credentials name no principal")
    return principal


def _to_scheme(given: Scheme | Check) -> Scheme:
    if hasattr(given, "authenticate"):
        return given  # type: ignore[return-value]
    if callable(given):
        return Custom(given)
    raise TypeError(f"{given!r} is not a scheme, nor a function that checks credentials")


def _unique_name(name: str, taken: dict[str, SecurityScheme]) -> str:
    if not TOKEN.fullmatch(name):
        raise ValueError(f"a security scheme cannot be called {name!r}")
    n, free = 1, name
    while free in taken:
        n += 1
        free = f"{name}{n}"
    return free


def _with_realm(challenge: str, realm: str) -> str:
    word, _, parameters = challenge.partition(" ")
    return f'{word} realm="{realm}"' + (f", {parameters}" if parameters else "")


async def no_fetch(url: str, form: Mapping[str, str] | None = None, authorization: str = "") -> bytes:
    raise Unavailable("this server has no way to fetch keys")


class AgentAuthenticator:
    """The `Authenticator` of an agent: checks its requirements before the body of a request is read."""

    def __init__(self, requirements: Requirements, *, realm: str, fetch: Fetch = no_fetch) -> None:
        self._requirements, self._fetch = requirements, fetch
        self.challenge = requirements.challenges(re.sub(r"[^ !#-\[\]-~]", "", realm))

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        return await self._requirements.principal(Presented(headers, query, certificate), self._fetch)
