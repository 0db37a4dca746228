"""Credentials that fetch their own tokens: client credentials, a login in a browser, a refresh token, a device code, and
the exchange of somebody else's token for one to act on their behalf (RFC 8693).

The card may say where to fetch them, but only on the agent's own origin: a card must not be able to send a client's
secret somewhere else. A token exchange never asks the card.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import time
from base64 import b64encode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Any, TypedDict, Unpack
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from dragoman.client.authorize import origin_of
from dragoman.client.credentials import Outgoing
from dragoman.client.fetch import MAX_DOCUMENT_BYTES
from dragoman.client.transport.transport import NOT_JSON, AddressBlocked, NotSent, Transport, read_at_most
from dragoman.errors import A2AError, Unauthenticated, Unreachable
from dragoman.model.card import AgentCard, OAuthFlow

_RENEW_EARLY_SECONDS = 30.0
_TOKEN_SECONDS = 30.0
"""How long a token endpoint may take."""
_MAX_EXCHANGED_TOKENS = 4096
"""Exchanged tokens that are held at a time. The one that was used longest ago is dropped."""
_TOKEN_LIKE = re.compile(r"[A-Za-z0-9_~+/=.-]{24,}")
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_OUR_FAULTS = (
    "invalid_client",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
    "invalid_target",
)
"""Errors of a token endpoint that no other subject token would change."""


class TokenUnavailable(NotSent):
    """A token endpoint is away. The agent cannot have seen the request."""


class TokenOptions(TypedDict, total=False):
    """Options of credentials that fetch their own tokens."""

    client_secret: str
    token_url: str
    scopes: Sequence[str]


class _Token:
    """An access token that is renewed when it is about to expire, or was refused."""

    flow = ""
    """The name of the flow in a card."""
    _default_seconds = 1e18
    """How long a token is used if the server does not say it."""

    def __init__(
        self,
        client_id: str,
        client_secret: str = "",
        token_url: str = "",
        scopes: Sequence[str] = (),
        *,
        audience: str | Sequence[str] = (),
        resource: str | Sequence[str] = (),
    ) -> None:
        self._client_id, self._client_secret = client_id, client_secret
        self.token_url = token_url
        self._scopes = tuple(scopes)
        self._for = [("audience", each) for each in _several(audience)]
        self._for += [("resource", each) for each in _several(resource)]
        self._refresh_token = ""
        self._access_token = ""
        self._expires = 0.0
        self._renewing = asyncio.Lock()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown."""
        held = (self._client_secret, self._access_token, self._refresh_token)
        return tuple(each for each in held if each)

    def learn(self, card: AgentCard, origin: str) -> None:
        """Fill in from the card what was not given, as far as it stays on `origin`."""
        for scheme in card.security_schemes.values():
            flows = scheme.oauth2_security_scheme.flows if scheme.oauth2_security_scheme else None
            flow: OAuthFlow | None = getattr(flows, self.flow, None)
            if flow is not None:
                self._learn(flow, origin)

    def _learn(self, flow: OAuthFlow, origin: str) -> None:
        if not self.token_url:
            self.token_url = _check_origin(flow.token_url, "token_url", origin)

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        if time.time() >= self._expires:
            async with self._renewing:
                if time.time() >= self._expires:
                    await self._renew(transport)
        return request.with_header("Authorization", f"Bearer {self._access_token}")

    async def refused(self, transport: Transport) -> bool:
        self._expires = 0.0
        return True

    async def _renew(self, transport: Transport) -> None:
        if self._refresh_token:
            form = {"grant_type": "refresh_token", "refresh_token": self._refresh_token}
            status, answer = await self._ask(transport, form)
            if status == 200:
                return await self._store_token(answer)
            self._refresh_token = ""
        await self._store_token(await self._request_token(transport))

    async def _request_token(self, transport: Transport) -> dict[str, Any]:
        raise NotImplementedError

    async def _ask(
        self, transport: Transport, form: dict[str, str], *, url: str = "", scopes: bool = True
    ) -> tuple[int, dict[str, Any]]:
        url = url or self.token_url
        if not url:
            raise Unauthenticated("there is no URL to get a token from: pass token_url=")
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if self._client_secret:
            pair = f"{quote(self._client_id, safe='')}:{quote(self._client_secret, safe='')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form = {**form, "client_id": self._client_id}
        if self._scopes and scopes:
            form = {**form, "scope": " ".join(self._scopes)}
        body = urlencode([*form.items(), *(self._for if scopes else ())]).encode()
        try:
            async with asyncio.timeout(_TOKEN_SECONDS):
                response = await transport.request("POST", url, headers, body)
                try:
                    read = await read_at_most(response, MAX_DOCUMENT_BYTES, url)
                finally:
                    await response.close()
        except TimeoutError:
            raise TokenUnavailable(f"{url} gave no token within {_TOKEN_SECONDS:g} s") from None
        except AddressBlocked:
            raise
        except Unreachable as error:
            raise TokenUnavailable(error.message) from error
        if response.status >= 500:
            raise TokenUnavailable(f"{url} answered HTTP {response.status}")
        try:
            answer = msgspec.json.decode(read, type=dict[str, Any])
        except (msgspec.ValidationError, *NOT_JSON) as error:
            raise Unauthenticated(f"{url} did not answer like a token endpoint: {error}") from error
        return response.status, answer

    async def _store_token(self, answer: dict[str, Any]) -> None:
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise Unauthenticated(f"{self.token_url} gave no token: {_describe_error(answer)}")
        if not (token.isascii() and token.isprintable()):
            raise Unauthenticated(f"{self.token_url} gave a token that does not fit into a header")
        self._access_token = token
        lasts = _seconds(answer.get("expires_in"), self._default_seconds)
        self._expires = time.time() + max(1.0, lasts - _RENEW_EARLY_SECONDS)
        if isinstance(answer.get("refresh_token"), str):
            self._refresh_token = answer["refresh_token"]
            await self._rotated(self._refresh_token)

    async def _rotated(self, refresh_token: str) -> None:
        """Called with a new refresh token."""


class ClientCredentials(_Token):
    """A program's own id and secret, exchanged for tokens. `audience`, `resource`: what the tokens are for."""

    flow = "client_credentials"

    def __init__(
        self,
        client_id: str,
        client_secret: str,
        *,
        token_url: str = "",
        scopes: Sequence[str] = (),
        audience: str | Sequence[str] = (),
        resource: str | Sequence[str] = (),
    ) -> None:
        super().__init__(client_id, client_secret, token_url, scopes, audience=audience, resource=resource)

    async def token(self, transport: Transport) -> str:
        """The token itself, for where it does not go into a header."""
        await self.apply(Outgoing("", {}), transport)
        return self._access_token

    async def _request_token(self, transport: Transport) -> dict[str, Any]:
        status, answer = await self._ask(transport, {"grant_type": "client_credentials"})
        if status != 200:
            raise Unauthenticated(
                f"{self.token_url} refused the client credentials: {_describe_error(answer)}"
            )
        return answer


class TokenExchange:
    """Acts on behalf of somebody else (RFC 8693): their token, exchanged for one that this agent takes.

    `subject` returns their token, and is called for each request. It may be empty; then nobody's token can be exchanged, and
    the request is refused. `actor`: who acts, which the new token says in its claim `act`. True: we, with a token that the
    client credentials get. A text: this token. False: nothing is sent, and the authorization server takes the client.
    `audience`, `resource`, `scopes`: what the new token is for. `subject_type`: the kind of the subject's token.

    A new token is held in memory until it expires, for the same token of the subject only. Raises `Unauthenticated` if the
    subject's token is refused, `CannotExchange` if the authorization server takes nobody's from us, and `Unreachable`.
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str,
        *,
        token_url: str,
        subject: Callable[[], str],
        actor: bool | str = True,
        audience: str | Sequence[str] = (),
        resource: str | Sequence[str] = (),
        scopes: Sequence[str] = (),
        subject_type: str = ACCESS_TOKEN,
        requested_type: str = "",
    ) -> None:
        self._client_id, self._client_secret, self.token_url = client_id, client_secret, token_url
        self._subject, self._subject_type, self._requested_type = subject, subject_type, requested_type
        self._audience, self._resource = audience, resource
        self._scopes = tuple(scopes)
        self._own = (
            ClientCredentials(client_id, client_secret, token_url=token_url) if actor is True else None
        )
        self._actor = actor if isinstance(actor, str) else ""
        self._exchanged: OrderedDict[bytes, _ExchangedToken] = OrderedDict()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown."""
        held = [self._client_secret, self._actor, *(self._own.secrets if self._own else ())]
        for each in self._exchanged.values():
            held += each.secrets
        return tuple(each for each in held if each)

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        return await self._of_subject().apply(request, transport)

    async def refused(self, transport: Transport) -> bool:
        return await self._of_subject().refused(transport)

    async def actor_token(self, transport: Transport) -> str:
        """The token of the one who acts; empty if none is sent."""
        return self._actor if self._own is None else await self._own.token(transport)

    def _of_subject(self) -> _ExchangedToken:
        subject = self._subject()
        if not subject:
            raise SubjectRefused("there is no token of the caller to exchange: send a bearer token")
        key = sha256(subject.encode()).digest()
        found = self._exchanged.get(key)
        if found is None:
            for old, oldest in list(itertools.islice(self._exchanged.items(), 2)):
                if oldest.idle or len(self._exchanged) >= _MAX_EXCHANGED_TOKENS:
                    del self._exchanged[old]
            found = self._exchanged[key] = _ExchangedToken(self, subject)
        self._exchanged.move_to_end(key)
        return found


class SubjectRefused(Unauthenticated):
    """There is no token of the subject, or the authorization server does not accept it."""


class CannotExchange(A2AError):
    """The authorization server exchanges no token for us: our client, audience or scope is wrong."""


class _ExchangedToken(_Token):
    """The token for one subject."""

    _default_seconds = 300.0

    def __init__(self, exchange: TokenExchange, subject: str) -> None:
        super().__init__(
            exchange._client_id,
            exchange._client_secret,
            exchange.token_url,
            exchange._scopes,
            audience=exchange._audience,
            resource=exchange._resource,
        )
        self._exchange, self._subject = exchange, subject

    @property
    def idle(self) -> bool:
        """It has expired, and nobody is waiting for a new one."""
        return time.time() >= self._expires and not self._renewing.locked()

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self._subject, *super().secrets)

    async def _renew(self, transport: Transport) -> None:
        # A refresh token would outlive what the subject's token allows, so each renewal shows the subject's token again.
        self._refresh_token = ""
        await super()._renew(transport)

    async def _request_token(self, transport: Transport) -> dict[str, Any]:
        exchange = self._exchange
        form = {
            "grant_type": _EXCHANGE,
            "subject_token": self._subject,
            "subject_token_type": exchange._subject_type,
        }
        try:
            actor = await exchange.actor_token(transport)
        except Unauthenticated as error:
            raise CannotExchange(error.message) from error
        if actor:
            form |= {"actor_token": actor, "actor_token_type": ACCESS_TOKEN}
        if exchange._requested_type:
            form["requested_token_type"] = exchange._requested_type
        status, answer = await self._ask(transport, form)
        if status == 200 and str(answer.get("token_type", "bearer")).lower() == "bearer":
            return answer
        if status == 200:
            raise CannotExchange(f"{self.token_url} gave a token that is not a bearer token")
        raise self._to_error(status, answer, actor)

    def _to_error(self, status: int, answer: dict[str, Any], actor: str) -> A2AError:
        reason = _describe_error(answer, (*self.secrets, actor))
        if answer.get("error") in _OUR_FAULTS or status == 401:
            return CannotExchange(f"{self.token_url} exchanges no token for us: {reason}")
        return SubjectRefused(f"{self.token_url} did not accept the caller's token: {reason}")


class AuthorizationCode(_Token):
    """A login in a browser, with PKCE (RFC 7636): open `begin()`, and give what comes back to `redirect_uri` to `finish`."""

    flow = "authorization_code"

    def __init__(
        self,
        client_id: str,
        *,
        redirect_uri: str,
        authorization_url: str = "",
        **options: Unpack[TokenOptions],
    ) -> None:
        super().__init__(client_id, **options)
        self.authorization_url, self._redirect_uri = authorization_url, redirect_uri
        self.state = ""
        """What the answer must have, so that it is the answer to our question."""
        self._verifier = ""

    def _learn(self, flow: OAuthFlow, origin: str) -> None:
        super()._learn(flow, origin)
        if not self.authorization_url:
            self.authorization_url = _check_origin(flow.authorization_url, "authorization_url", origin)

    def begin(self) -> str:
        """The URL to open in a browser. Raises `Unauthenticated`."""
        parts = urlsplit(self.authorization_url)
        if not self.token_url or not parts.hostname or parts.scheme not in ("http", "https"):
            raise Unauthenticated("there is no URL to log in at: pass authorization_url= and token_url=")
        self.state, self._verifier = token_urlsafe(32), token_urlsafe(48)
        challenge = urlsafe_b64encode(sha256(self._verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "state": self.state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **({"scope": " ".join(self._scopes)} if self._scopes else {}),
        }
        before = f"{parts.query}&" if parts.query else ""
        return parts._replace(query=before + urlencode(query), fragment="").geturl()

    async def finish(self, transport: Transport, code: str, state: str) -> None:
        """Exchange the code for a token. Raises `Unauthenticated`. A state works once."""
        expected, verifier = self.state, self._verifier
        self.state = self._verifier = ""
        if not expected or not compare_digest(expected.encode(), state.encode()):
            raise Unauthenticated("this login was not begun here, or is over")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": verifier,
        }
        status, answer = await self._ask(transport, form, scopes=False)
        if status != 200:
            raise Unauthenticated(f"{self.token_url} refused the code: {_describe_error(answer)}")
        await self._store_token(answer)

    async def _request_token(self, transport: Transport) -> dict[str, Any]:
        raise Unauthenticated("the token has expired: log in again")


class RefreshToken(_Token):
    """A refresh token from an earlier login. `rotated` is called when the server replaces it."""

    flow = "authorization_code"

    def __init__(
        self,
        refresh_token: str,
        *,
        client_id: str,
        rotated: Callable[[str], Awaitable[None] | None] | None = None,
        **options: Unpack[TokenOptions],
    ) -> None:
        super().__init__(client_id, **options)
        self._refresh_token = refresh_token
        self._on_rotated = rotated

    async def _request_token(self, transport: Transport) -> dict[str, Any]:
        raise Unauthenticated(f"{self.token_url} no longer takes the refresh token: log in again")

    async def _rotated(self, refresh_token: str) -> None:
        if self._on_rotated is not None:
            result = self._on_rotated(refresh_token)
            if inspect.isawaitable(result):
                await result


class DeviceCode(_Token):
    """A login on another device: `prompt(url, code)` shows a person where to go and what to type there."""

    flow = "device_code"

    def __init__(
        self,
        client_id: str,
        *,
        prompt: Callable[[str, str], Awaitable[None] | None],
        device_url: str = "",
        **options: Unpack[TokenOptions],
    ) -> None:
        super().__init__(client_id, **options)
        self.device_url = device_url
        self._prompt = prompt

    def _learn(self, flow: OAuthFlow, origin: str) -> None:
        super()._learn(flow, origin)
        if not self.device_url:
            self.device_url = _check_origin(flow.device_authorization_url, "device_url", origin)

    async def _request_token(self, transport: Transport) -> dict[str, Any]:
        if not self.device_url:
            raise Unauthenticated("there is no URL to begin a login at: pass device_url=")
        _, begun = await self._ask(transport, {}, url=self.device_url)
        code = begun.get("device_code")
        where = begun.get("verification_uri_complete") or begun.get("verification_uri")
        if not isinstance(code, str) or not isinstance(where, str):
            raise Unauthenticated(f"{self.device_url} began no login: {_describe_error(begun)}")
        prompted = self._prompt(where, str(begun.get("user_code", "")))
        if inspect.isawaitable(prompted):
            await prompted
        interval, lasts = _seconds(begun.get("interval"), 5), _seconds(begun.get("expires_in"), 900)
        until = time.monotonic() + lasts
        form = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": code}
        while time.monotonic() < until:
            await asyncio.sleep(interval)
            status, answer = await self._ask(transport, form)
            if status == 200:
                return answer
            if answer.get("error") == "slow_down":
                interval += 5
            elif answer.get("error") != "authorization_pending":
                raise Unauthenticated(f"the login failed: {_describe_error(answer)}")
        raise Unauthenticated("the login was not completed in time")


def _seconds(value: Any, default: float) -> float:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return default


def _check_origin(url: str, parameter: str, origin: str) -> str:
    if url and origin_of(url) != origin:
        raise Unauthenticated(
            f"the card says to log in at {url}, which is not on the agent's own origin; "
            f"pass {parameter}={url!r} if you trust it"
        )
    return url


def _describe_error(answer: dict[str, Any], secrets: Sequence[str] = ()) -> str:
    """What a token endpoint says, on one line. It may repeat what it was sent, so everything like a token is left out."""
    words = ": ".join(str(answer[key])[:2000] for key in ("error", "error_description") if answer.get(key))
    for secret in secrets:
        if secret:
            words = words.replace(secret, "***")
    return " ".join(_TOKEN_LIKE.sub("***", words).split())[:300] or "without a reason"


def _several(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) and given else tuple(given)
