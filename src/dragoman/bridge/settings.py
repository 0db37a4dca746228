"""The file of a bridge: agents elsewhere, each with a path here, and their settings.

    [auth]                               # who may call the agents that do not say otherwise
    tokens = "tokens.json"

    [agents.crew]                        # at /crew
    url = "http://crew:9000"
    credentials = "env:CREW_TOKEN"
    mode = "durable"

    [agents.crew.skills.refund]
    scopes = ["refunds"]

`read_bridge` reads it. A setting that does not exist is refused, with the nearest one that does.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.agent.agent import VERSIONS
from dragoman.auth import ApiKey, Bearer, MutualTLS, hashed
from dragoman.auth.secrets import Holder
from dragoman.bridge.credentials import depends_on_caller, read_credentials, read_secret
from dragoman.client.config import explain_setting, place_of, unknown_setting
from dragoman.dialects.cards import version_of
from dragoman.dialects.select import DIALECTS
from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC
from dragoman.observe.limit import Quota

BINDINGS = (JSONRPC, HTTP_JSON, GRPC)
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(gt=0)]

DURABLE, PASS = "durable", "pass"
BRIDGE = "urn:dragoman:extension:bridge:v1"
"""The URI of the extension on a card that names a bridge. See `docs/bridge.md`."""
TABLES = ("agents", "auth")
_NAME = re.compile(r"[A-Za-z0-9._~-]+")


class InvalidBridge(ValueError):
    """The settings of a bridge cannot be used. The message says where and why."""


class UpstreamSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the agent behind a route is reached."""

    url: str = ""
    urls: tuple[str, ...] = ()
    """Several servers of the same agent, instead of `url`: the next one is called if one is down."""
    credentials: str | tuple[str, str] | dict[str, Any] | None = None
    """Credentials for the agent: a secret (`env:NAME` reads a variable), a name and a password, or a table."""
    certificate: str = ""
    """A client certificate and its key, in one PEM file."""
    headers: dict[str, str] = {}
    version: str = ""
    """Call it in this version only; empty: in the newest that it speaks."""
    binding: str = ""
    signed_by: str = ""
    """A file or a URL with the keys that must have signed its card."""
    allow_private: bool = False
    """Its card may name addresses that are not public and not those of `url`."""
    timeout: Seconds | None = None
    """How long one operation may take, or the pause between two events of a stream."""
    wait: Seconds = 300.0
    """How long a durable task waits for an agent that is down before it fails."""
    stalled: Annotated[float, Meta(ge=0, le=86_400)] = 900.0
    """How long the agent's task may be `working` without a new event, after its stream was lost, before it counts as abandoned; 0: for
    ever. See `client.resumable_stream`."""
    concurrency: Count | None = None
    """How many operations of all callers may run at a time, streams included."""
    max_task_mb: Count = 256
    """How many megabytes the agent may send for one message in mode `durable`. If it sends more, its task is canceled and ours fails."""
    retries: Annotated[int, Meta(ge=0)] = 3
    breaker: Annotated[int, Meta(ge=0)] = 5
    """After this many failures in a row the agent is not called for a while; 0: it is always called."""

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.urls or (self.url,)


class SkillSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one skill of the agent."""

    scopes: tuple[str, ...] = ()
    """Scopes that a caller needs to use it."""
    hidden: bool = False
    """It is not on the card, and messages that name it are refused."""


class LimitSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one route, as `observe.limit.Quota` has them."""

    rate: Rate | None = None
    burst: Count = 20
    concurrency: Count | None = None
    open_tasks: Count | None = None
    agent_rate: Rate | None = None
    agent_burst: Count = 100
    agent_concurrency: Count | None = None

    @property
    def quota(self) -> Quota:
        return Quota(**msgspec.structs.asdict(self))


class TokenIssuer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who issues tokens: OpenID Connect by its URL (`oidc`), or JWTs whose keys are at `jwks_url`."""

    url: str = ""
    issuer: str = ""
    audience: str | tuple[str, ...] = ""
    jwks_url: str = ""
    tenant_claim: str = ""
    client: tuple[str, str] | None = None
    """The client id and secret for an introspection endpoint (`env:NAME` reads a variable)."""

    def options(self, scopes: tuple[str, ...]) -> dict[str, Any]:
        return {"tenant_claim": self.tenant_claim, "scopes": scopes}


class AuthSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may call. Each of these is an alternative; without any, everybody may."""

    tokens: str | dict[str, Any] | None = None
    """Bearer tokens: a JSON file with hashes of them by holder (`docs/auth.md`), or a table of secrets by holder."""
    api_keys: str | dict[str, Any] | None = None
    """Keys in the header `X-API-Key`, in the same forms."""
    oidc: TokenIssuer | None = None
    jwt: TokenIssuer | None = None
    introspection: TokenIssuer | None = None
    mtls: bool = False
    """Client certificates; the server needs `--tls-client-ca`."""

    def schemes(self, scopes: tuple[str, ...] = ()) -> list[Any]:
        """The schemes of `dragoman.auth`. Raises `ValueError`."""
        out: list[Any] = []
        if self.tokens is not None:
            out.append(Bearer(_holders(self.tokens), scopes=scopes))
        if self.api_keys is not None:
            out.append(ApiKey(_holders(self.api_keys), scopes=scopes))
        if (given := self.oidc) is not None:
            from dragoman.auth.jwt import OIDC

            out.append(OIDC(given.url, given.audience, issuer=given.issuer, **given.options(scopes)))
        if (given := self.jwt) is not None:
            from dragoman.auth.jwt import JWT

            out.append(JWT(given.issuer, given.audience, jwks_url=given.jwks_url, **given.options(scopes)))
        if (given := self.introspection) is not None:
            from dragoman.auth.introspection import Introspection

            client = None if given.client is None else (given.client[0], read_secret(given.client[1]))
            more = given.options(scopes)
            out.append(Introspection(given.url, given.audience, client=client, issuer=given.issuer, **more))
        if self.mtls:
            out.append(MutualTLS(scopes=scopes))
        return out


class RouteSettings(UpstreamSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent of a bridge."""

    path: str = ""
    """Its path here; empty: its name in the file."""
    mode: Literal["durable", "pass"] = "durable"
    """`durable`: tasks are stored here, and follow those of the agent. `pass`: nothing is stored."""
    versions: tuple[str, ...] = VERSIONS
    """The versions in which it can be called here."""
    auth: AuthSettings | None = None
    """Who may call it; None: the callers of `[auth]`."""
    callers: tuple[str, ...] = ()
    """Only these of them; empty: all."""
    scopes: tuple[str, ...] = ()
    """Scopes that every caller needs."""
    skills: dict[str, SkillSettings] = {}
    limits: LimitSettings | None = None
    """Limits of this agent, in place of those of the server."""
    private_card: bool = False
    """Its card is for authenticated callers only."""
    shared_tasks: bool = False
    """In mode `pass`, with one credential for all callers: let them see and cancel each other's tasks."""


class BridgeSettings(Struct, frozen=True, kw_only=True):
    routes: dict[str, RouteSettings]


def _holders(given: str | dict[str, Any]) -> Any:
    """Hashes by holder, in a file or from a table of secrets: a text, or `{secret = "env:NAME", scopes = [...]}`."""
    if isinstance(given, str):
        return Path(given)
    out: dict[str, Holder] = {}
    for who, what in given.items():
        entry = {"secret": what} if isinstance(what, str) else what
        if not isinstance(entry, dict) or not isinstance(entry.get("secret"), str):
            raise ValueError(f"{who} needs a secret")
        out[who] = msgspec.convert({**entry, "secret": hashed(read_secret(entry["secret"]))}, Holder)
    return out


def make_one_route(url: str, **settings: Any) -> BridgeSettings:
    """A bridge with one agent, at the root. Raises `InvalidBridge`."""
    try:
        route = msgspec.convert({"url": url, "path": "/", **settings}, RouteSettings)
        name = re.sub(r"[^A-Za-z0-9.~-]+", "-", urlsplit(url).netloc.rpartition("@")[2]).strip("-") or "agent"
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidBridge(str(error)) from error
    check_route(name, route)
    return BridgeSettings(routes={name: route})


def read_bridge(file: str | Path) -> BridgeSettings:
    """The settings in a file. Raises `InvalidBridge`."""
    path = Path(file)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidBridge(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    for name in tables:
        if name not in TABLES:
            fail(path, [name], unknown_setting(name, TABLES, "the file").replace("[the file]", "a bridge"))
    auth = _read(path, ["auth"], tables.get("auth", {}), AuthSettings)
    given = tables.get("agents")
    if not isinstance(given, dict) or not given:
        raise InvalidBridge(f"{place_of(['agents'], str(path))}: there is no agent: [agents.NAME] with a url")
    routes: dict[str, RouteSettings] = {}
    for name, entry in given.items():
        where = ["agents", name]
        if not _NAME.fullmatch(name):
            fail(path, where, f"{name!r} is part of a URL: letters, digits and . _ ~ -")
        entry = {"url": entry} if isinstance(entry, str) else entry
        route: RouteSettings = _read(path, where, entry, RouteSettings)
        route = replace(
            route,
            path=route.path or f"/{name}",
            auth=_with_paths(path, route.auth or auth),
            certificate=_relative_to(path, route.certificate),
            signed_by=_relative_to(path, route.signed_by),
        )
        try:
            check_route(name, route)
        except InvalidBridge as error:
            fail(path, where, str(error))
        for other, known in routes.items():
            if known.path.rstrip("/") == route.path.rstrip("/"):
                fail(path, [*where, "path"], f"{name} and {other} have the same path, {route.path}")
        routes[name] = route
    return BridgeSettings(routes=routes)


def check_route(name: str, route: RouteSettings) -> None:
    """Check the settings of one route. Raises `InvalidBridge`."""
    if bool(route.url) == bool(route.urls):
        raise InvalidBridge(f"{name} needs a url, or urls, and not both")
    for url in route.addresses:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidBridge(f"{name}: {url!r} is not a URL: http://HOST:PORT or https://HOST")
        if parts.username or parts.password:
            raise InvalidBridge(f"{name}: a URL has no password in it: use credentials")
    if not route.path.startswith("/"):
        raise InvalidBridge(f"{name}: a path begins with a slash, not {route.path!r}")
    if unknown := [each for each in route.versions if each not in VERSIONS]:
        raise InvalidBridge(f"{name}: versions are some of {', '.join(VERSIONS)}, not {unknown[0]!r}")
    if route.binding.upper() not in ("", *BINDINGS):
        raise InvalidBridge(f"{name}: binding is one of {', '.join(BINDINGS)}, not {route.binding!r}")
    if route.version and route.version not in DIALECTS and version_of(route.version) not in DIALECTS:
        raise InvalidBridge(f"{name}: there is no A2A {route.version}; known are {', '.join(DIALECTS)}")
    if route.signed_by and "://" not in route.signed_by and not Path(route.signed_by).is_file():
        raise InvalidBridge(f"{name}: signed_by: there is no file {route.signed_by}")
    if not route.versions:
        raise InvalidBridge(f"{name}: versions are some of {', '.join(VERSIONS)}")
    if route.certificate and route.credentials is not None:
        raise InvalidBridge(f"{name} has both a certificate and credentials")
    try:
        knows_callers = bool(route.auth and route.auth.schemes())
    except (ValueError, OSError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        raise InvalidBridge(f"{name}: auth: {why}") from error
    try:
        read_credentials(route.credentials)
    except ValueError as error:
        raise InvalidBridge(f"{name}: {error}") from error
    if depends_on_caller(route.credentials) and route.mode == DURABLE and not knows_callers:
        raise InvalidBridge(
            f"{name}: credentials of callers are kept for each of them, so they have to say who they are: give auth, "
            'or use mode = "pass"'
        )
    needs = [
        what
        for what, given in (
            ("callers", route.callers),
            ("scopes", route.scopes),
            ("private_card", route.private_card),
            ("scopes of a skill", any(skill.scopes for skill in route.skills.values())),
        )
        if given
    ]
    if needs and not knows_callers:
        raise InvalidBridge(f"{name}: {needs[0]} needs callers that say who they are: give auth")


def shares_tasks(route: RouteSettings) -> bool:
    """True if callers of this route could see each other's tasks: the agent cannot tell them apart."""
    known = bool(route.auth and route.auth.schemes())
    return route.mode == PASS and known and not depends_on_caller(route.credentials)


def _read(path: Path, where: list[str], given: Any, kind: type[Any]) -> Any:
    if not isinstance(given, Mapping):
        fail(path, where, f"{where[-1]} is not a table")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        at = re.findall(r"[\w-]+|\[\.\.\.\]", str(error).partition(" - at ")[2])
        unknown = re.match(r"Object contains unknown field `([^`]*)`", str(error))
        if unknown:
            inside = _struct_at(kind, at)
            at = _with_names(given, at, unknown[1])
            table = ".".join([*where, *at])
            fail(path, [*where, *at, unknown[1]], unknown_setting(unknown[1], inside, table))
        at = [each for each in at if each.isidentifier()]
        name = at[-1] if at else where[-1]
        fail(path, [*where, *at], f"{name} {explain_setting(error, kind, name)}")


def _struct_at(kind: type[Any], at: list[str]) -> tuple[str, ...]:
    """The settings of the table at `at` below a table of `kind`."""
    below: dict[str, type[Any]] = {
        "auth": AuthSettings,
        "skills": SkillSettings,
        "limits": LimitSettings,
        "oidc": TokenIssuer,
        "jwt": TokenIssuer,
        "introspection": TokenIssuer,
    }
    for name in at:
        kind = below.get(name, kind)
    return tuple(kind.__struct_fields__)


def _with_names(given: Any, at: list[str], unknown: str) -> list[str]:
    """The place of an unknown setting, with the names of tables that an error shows as `[...]`."""
    out: list[str] = []
    for name in at:
        if name == "[...]":
            name = next((key for key, each in given.items() if unknown in each), "")
        given = given.get(name, {})
        out.append(name)
    return out


def fail(path: Path, where: list[str], why: str) -> NoReturn:
    raise InvalidBridge(f"{place_of(where, str(path))}: {why}")


def _relative_to(path: Path, name: str) -> str:
    """A file name in the settings file `path`: relative to its folder."""
    return name if not name or "://" in name else str(path.parent / Path(name).expanduser())


def _with_paths(path: Path, auth: AuthSettings) -> AuthSettings:
    tokens = _relative_to(path, auth.tokens) if isinstance(auth.tokens, str) else auth.tokens
    keys = _relative_to(path, auth.api_keys) if isinstance(auth.api_keys, str) else auth.api_keys
    return replace(auth, tokens=tokens, api_keys=keys)
