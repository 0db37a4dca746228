"""Log in at agents elsewhere: credentials stay in this process, and a page gets a handle for them.

A handle works for the origin that it was made for. Logins are in memory: at most `MAX_LOGINS`, for `LOGIN_SECONDS` after their last
use, and gone when the process ends.
"""

from __future__ import annotations

import asyncio
import html
import secrets
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from dragoman.client import ApiKey, AuthorizationCode, Basic, Bearer, ClientCredentials, DeviceCode
from dragoman.client.credentials import Outgoing
from dragoman.client.transport.transport import Transport
from dragoman.console.access import OPERATOR
from dragoman.console.api import ANY_QUERY, ANYBODY, API, Console, ConsoleRequest
from dragoman.console.outbound import check_url, connect_elsewhere
from dragoman.errors import A2AError, Forbidden, InvalidParams
from dragoman.model.card import AgentCard
from dragoman.model.ids import timestamp
from dragoman.observe.redact import redact_text
from dragoman.push.guard import OutboundGuard
from dragoman.server.routes import ApiResponse, NotFound, Route, RouteList

MAX_LOGINS = 32
LOGIN_SECONDS = 8 * 3600.0
BEGIN_SECONDS = 30.0
"""How long a token server has to answer."""
PENDING_SECONDS = 900.0
"""How long a person has to log in in a browser."""
READY, PENDING, FAILED = "ready", "pending", "failed"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1><p>{text}</p><p>You can close this tab and go back to the console.</p></body></html>
"""


class LoginRequest(Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    url: str
    kind: str
    token: str = ""
    key: str = ""
    name: str = ""
    password: str = ""
    location: str = ""
    place: str = field(default="", name="in")
    client_id: str = ""
    client_secret: str = ""
    token_url: str = ""
    device_url: str = ""
    authorization_url: str = ""
    scopes: str | list[str] = ""


class Login:
    """One set of credentials for one origin."""

    def __init__(self, form: LoginRequest, origin: str) -> None:
        self.handle = secrets.token_urlsafe(24)
        self.url, self.origin, self.kind = form.url, origin, form.kind
        self.state, self.message = READY, ""
        self.authorize_url = self.verification_url = self.user_code = ""
        self.used = time.monotonic()
        self.credential: Any = None
        """For `connect`: a `Credential`, or a secret that is used as the card asks."""
        self.pending: asyncio.Task[None] | None = None
        self._entered_secrets = [
            each for each in (form.token, form.key, form.password, form.client_secret) if each
        ]

    def secrets(self) -> list[str]:
        """The secrets of this login, which the wire view masks."""
        return [*self._entered_secrets, *getattr(self.credential, "secrets", ())]

    @property
    def expired(self) -> bool:
        lasts = PENDING_SECONDS if self.state == PENDING else LOGIN_SECONDS
        return time.monotonic() - self.used > lasts

    def describe(self) -> dict[str, Any]:
        left = LOGIN_SECONDS - (time.monotonic() - self.used)
        return {
            "handle": self.handle,
            "url": self.url,
            "origin": self.origin,
            "kind": self.kind,
            "state": self.state,
            "message": self.message,
            "authorizeUrl": self.authorize_url or None,
            "verificationUrl": self.verification_url or None,
            "userCode": self.user_code or None,
            "expires": timestamp(time.time() + left),
        }

    def fail(self, why: str) -> None:
        self.state, self.message, self.authorize_url = FAILED, redact_text(why), ""


class Logins:
    """The logins of one process."""

    def __init__(self, guard: OutboundGuard) -> None:
        self._guard = guard
        self._logins: dict[str, Login] = {}
        self._transport: Transport | None = None

    def get(self, handle: str, url: str) -> Login:
        """The login, for an agent at `url`. Raises `NotFound` or `Forbidden`."""
        login = self.find(handle)
        if check_url(url) != login.origin:
            raise Forbidden(f"this login is for {login.origin}: log in at the other agent, too")
        if login.state != READY:
            raise Forbidden(login.message or "this login is not finished")
        login.used = time.monotonic()
        return login

    def find(self, handle: str) -> Login:
        login = self._logins.get(handle)
        if login is None or login.expired:
            raise NotFound("this login is not known any more: log in again")
        return login

    def list(self) -> list[Login]:
        return [each for each in self._logins.values() if not each.expired]

    def forget(self, handle: str) -> None:
        login = self._logins.pop(handle, None)
        if login is not None and login.pending is not None:
            login.pending.cancel()

    def add(self, credential: Any, url: str, *given: str) -> Login:
        """A login with credentials that the operator gave on the command line. `given` are the secrets in it."""
        login = Login(LoginRequest(url=url, kind="given"), check_url(url))
        login.credential = credential
        login._entered_secrets += given
        self._store(login)
        return login

    async def begin(self, form: LoginRequest, callback: str) -> Login:
        """Log in, or begin to. `callback`: where a browser comes back to. Raises `InvalidParams`."""
        login = Login(form, check_url(form.url))
        begin = getattr(self, f"_begin_{form.kind}", None) if form.kind in KINDS else None
        if begin is None:
            raise InvalidParams(
                f"there is no way to log in called {form.kind[:40]!r}",
                fields=(("kind", f"is one of {', '.join(KINDS)}"),),
            )
        self._store(login)
        try:
            await begin(login, form, callback)
        except InvalidParams:
            self.forget(login.handle)
            raise
        except (A2AError, OSError) as error:
            login.fail(str(error) or "the token server did not answer in time")
        except BaseException:
            self.forget(login.handle)
            raise
        return login

    async def finish(self, state: str, code: str, error: str) -> Login:
        """Finish a login when the browser comes back from it. Raises `Forbidden` for an unknown `state`."""
        for login in self.list():
            credential = login.credential
            if not isinstance(credential, AuthorizationCode) or login.state != PENDING:
                continue
            if credential.state and secrets.compare_digest(credential.state.encode(), state.encode()):
                login.authorize_url = ""
                if error or not code:
                    credential.state = ""
                    login.fail(f"the login failed: {error[:300] or 'there is no code'}")
                    return login
                await self._settle(login, credential.finish(self._open_transport(), code, state))
                return login
        raise Forbidden("this login was not started here, or is over")

    async def close(self) -> None:
        for handle in list(self._logins):
            self.forget(handle)
        if self._transport is not None:
            await self._transport.close()

    # -- the kinds ---------------------------------------------------------------------------------------------

    async def _begin_bearer(self, login: Login, form: LoginRequest, callback: str) -> None:
        login.credential = Bearer(_never_a_variable(_require(form.token, "token")))

    async def _begin_basic(self, login: Login, form: LoginRequest, callback: str) -> None:
        login.credential = Basic(
            _require(form.name, "name"), _never_a_variable(_require(form.password, "password"))
        )

    async def _begin_apiKey(self, login: Login, form: LoginRequest, callback: str) -> None:
        name, location = form.name, form.location or form.place
        if not name or not location:
            declared = [
                scheme.api_key_security_scheme
                for scheme in (await self._card(form)).security_schemes.values()
            ]
            scheme = next((each for each in declared if each is not None), None)
            name = name or (scheme.name if scheme is not None else "X-API-Key")
            location = location or (scheme.location if scheme is not None else "header")
        try:
            login.credential = ApiKey(
                _never_a_variable(_require(form.key, "key")), name=name, location=location
            )
        except ValueError as error:
            raise InvalidParams(str(error), fields=(("location", "is header, query or cookie"),)) from None

    async def _begin_clientCredentials(self, login: Login, form: LoginRequest, callback: str) -> None:
        client = _oauth_client(form)
        _require(form.client_secret, "clientSecret")
        credential = ClientCredentials(**client)
        login.credential = credential
        if not form.token_url:
            credential.learn(await self._card(form), login.origin)
        async with asyncio.timeout(BEGIN_SECONDS):
            await credential.apply(Outgoing(form.url, {}), self._open_transport())

    async def _begin_deviceCode(self, login: Login, form: LoginRequest, callback: str) -> None:
        prompted = asyncio.Event()

        def prompt(url: str, code: str) -> None:
            login.verification_url, login.user_code = _web_url(url), code[:100]
            prompted.set()

        credential = DeviceCode(prompt=prompt, device_url=form.device_url, **_oauth_client(form))
        login.credential = credential
        if not form.token_url or not form.device_url:
            credential.learn(await self._card(form), login.origin)
        login.state = PENDING
        wait = credential.apply(Outgoing(form.url, {}), self._open_transport())
        login.pending = asyncio.create_task(self._settle(login, wait))
        waiting = asyncio.create_task(prompted.wait())
        try:
            await asyncio.wait(
                (login.pending, waiting), timeout=BEGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if not prompted.is_set() and login.state == PENDING:
            login.pending.cancel()
            login.fail(f"{credential.device_url} did not answer")

    async def _begin_authorizationCode(self, login: Login, form: LoginRequest, callback: str) -> None:
        credential = AuthorizationCode(
            redirect_uri=callback, authorization_url=form.authorization_url, **_oauth_client(form)
        )
        login.credential = credential
        if not form.token_url or not form.authorization_url:
            credential.learn(await self._card(form), login.origin)
        login.authorize_url = _web_url(credential.begin())
        login.state = PENDING

    async def _settle(self, login: Login, wait: Any) -> None:
        """Wait for a login to be finished."""
        try:
            async with asyncio.timeout(PENDING_SECONDS):
                await wait
            login.state, login.used = READY, time.monotonic()
            login.verification_url = login.user_code = ""
        except TimeoutError:
            login.fail("the login took too long")
        except (A2AError, OSError) as error:
            login.fail(str(error))

    async def _card(self, form: LoginRequest) -> AgentCard:
        """The card of the agent: it has the addresses for the login that the operator left out."""
        async with connect_elsewhere(form.url, self._guard, timeout=BEGIN_SECONDS) as client:
            return client.card

    def _open_transport(self) -> Transport:
        if self._transport is None:
            self._transport = self._guard.transport()
        return self._transport

    def _store(self, login: Login) -> None:
        for handle in [each.handle for each in self._logins.values() if each.expired]:
            self.forget(handle)
        while len(self._logins) >= MAX_LOGINS:
            self.forget(min(self._logins.values(), key=lambda each: each.used).handle)
        self._logins[login.handle] = login


KINDS = ("bearer", "basic", "apiKey", "clientCredentials", "deviceCode", "authorizationCode")


def _require(value: str, name: str) -> str:
    if not value:
        raise InvalidParams(f"{name} is missing", fields=((name, "is missing"),))
    return value


def _never_a_variable(secret: str) -> Any:
    """A secret that the client uses as it is. It would read `env:NAME` from the environment of this process."""
    return (lambda: secret) if secret.startswith("env:") else secret


def _oauth_client(form: LoginRequest) -> dict[str, Any]:
    """The OAuth client of a form: id, secret, token URL and scopes."""
    return {
        "client_id": _require(form.client_id, "clientId"),
        "client_secret": form.client_secret,
        "token_url": form.token_url,
        "scopes": form.scopes.split() if isinstance(form.scopes, str) else list(form.scopes),
    }


def _web_url(url: str) -> str:
    """A URL that a page may open: no other scheme than http and https."""
    check_url(url)
    return url


def callback_page(title: str, text: str) -> ApiResponse:
    page = _PAGE.format(title=html.escape(title), text=html.escape(text))
    return ApiResponse(page.encode(), 200, ((b"content-type", b"text/html; charset=utf-8"),))


def routes(console: Console, logins: Logins) -> Sequence[Route]:
    api = RouteList("login", access=OPERATOR)

    @api.add("POST", "/login", "Log in at an agent elsewhere. The credentials stay here.", body=LoginRequest)
    async def log_in(request: ConsoleRequest) -> Any:
        form = await request.json(LoginRequest)
        login = await logins.begin(form, f"{request.exchange.base_url()}{API}/login/callback")
        return login.describe()

    @api.add("GET", "/login", "The logins at agents elsewhere.")
    async def list_logins(request: ConsoleRequest) -> Any:
        return {"logins": [login.describe() for login in logins.list()]}

    @api.add(
        "GET",
        "/login/callback",
        "Where a browser comes back to from a login. The state in the query is the proof.",
        access=ANYBODY,
        query={
            "code": "what is exchanged for a token",
            "state": "which login it is",
            "error": "why it failed",
            ANY_QUERY: "Servers of OAuth add others.",
        },
    )
    async def callback(request: ConsoleRequest) -> Any:
        error = " ".join(filter(None, (request.query("error"), request.query("error_description"))))
        login = await logins.finish(request.query("state"), request.query("code"), error)
        if login.state == READY:
            return callback_page("You are logged in", f"The console can now call {login.origin}.")
        return callback_page("The login failed", login.message)

    @api.add("GET", "/login/{handle}", "One login: whether it is finished.")
    async def show(request: ConsoleRequest) -> Any:
        return logins.find(request.path["handle"]).describe()

    @api.add("DELETE", "/login/{handle}", "Forget the credentials.", status=204)
    async def forget(request: ConsoleRequest) -> Any:
        logins.forget(request.path["handle"])

    return api
