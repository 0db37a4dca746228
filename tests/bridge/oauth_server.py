"""An OAuth authorization server on loopback, made with Authlib: client credentials and token exchange (RFC 8693).

Authlib authenticates clients, dispatches grants, makes the JWTs (RFC 9068) and the error documents. It leaves the grant of RFC
8693 to its users, so that is here: it checks both tokens and says in `act` who acts, also for chains of actors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from authlib.oauth2.rfc6749 import AuthorizationServer, BaseGrant, ClientMixin, TokenEndpointMixin
from authlib.oauth2.rfc6749.errors import (
    InvalidGrantError,
    InvalidRequestError,
    OAuth2Error,
    UnauthorizedClientError,
)
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload, OAuth2Request
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


class InvalidTargetError(OAuth2Error):
    error = "invalid_target"


class Program(ClientMixin):
    """A registered client. `may_exchange_for`: the audiences it may ask for."""

    def __init__(self, id: str, secret: str, may_exchange_for: tuple[str, ...] = ()) -> None:
        self.id, self.secret, self.may_exchange_for = id, secret, may_exchange_for

    def get_client_id(self) -> str:
        return self.id

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials" or bool(self.may_exchange_for)

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""


class Subject:
    def __init__(self, id: str, audience: str, act: dict[str, Any] | None) -> None:
        self.id, self.audience, self.act = id, audience, act

    def get_user_id(self) -> str:
        return self.id


class _Tokens(JWTBearerTokenGenerator):
    def __init__(self, server: OAuthServer) -> None:
        super().__init__(issuer=server.issuer, alg="ES256", expires_generator=lambda *_: server.lasts)
        self._server = server

    def get_jwks(self) -> Any:
        return self._server.key.as_dict(private=True)

    def get_audiences(self, client: Any, user: Any, scope: Any) -> Any:
        return user.audience if user is not None else self._server.issuer

    def get_extra_claims(self, client: Any, grant_type: str, user: Any, scope: Any) -> dict[str, Any]:
        return {"act": user.act} if user is not None and user.act is not None else {}


class _TokenExchange(BaseGrant, TokenEndpointMixin):
    GRANT_TYPE = EXCHANGE

    def validate_token_request(self) -> None:
        client = self.authenticate_token_endpoint_client()
        if not client.check_grant_type(EXCHANGE):
            raise UnauthorizedClientError(f"The client {client.id} may not exchange tokens")
        self.request.client = client
        form = self.request.payload.data
        if form.get("subject_token_type") != ACCESS_TOKEN:
            raise InvalidRequestError("subject_token_type is not supported")
        subject = self._read(form.get("subject_token", ""))
        act: dict[str, Any] = {"sub": client.id}
        if "actor_token" in form:
            if form.get("actor_token_type") != ACCESS_TOKEN:
                raise InvalidRequestError("actor_token_type is not supported")
            act = {"sub": self._read(form["actor_token"])["sub"]}
        if "act" in subject:
            act["act"] = subject["act"]  # the actor before this one (RFC 8693, 4.1)
        audience = form.get("audience") or form.get("resource") or ""
        if audience not in client.may_exchange_for:
            raise InvalidTargetError(f"The client may not have tokens for {audience!r}")
        self.request.user = Subject(subject["sub"], audience, act)

    def create_token_response(self) -> Any:
        token = self.generate_token(
            user=self.request.user, scope=self.request.payload.scope, include_refresh_token=False
        )
        return 200, {**token, "issued_token_type": ACCESS_TOKEN}, self.TOKEN_RESPONSE_HEADER

    def _read(self, token: str) -> dict[str, Any]:
        try:
            claims = dict(jwt.decode(token, self.server.oauth.key, algorithms=["ES256"]).claims)
        except (JoseError, ValueError) as error:
            raise InvalidGrantError(f"The token {token} is not valid") from error
        if claims["exp"] <= time.time():
            raise InvalidGrantError(f"The token {token} has expired")
        return claims


class _Server(AuthorizationServer):
    def __init__(self, oauth: OAuthServer) -> None:
        super().__init__()
        self.oauth = oauth

    def query_client(self, client_id: str) -> Any:
        return self.oauth.programs.get(client_id)

    def save_token(self, token: Any, request: Any) -> None:
        pass

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        pass

    def create_oauth2_request(self, request: Any) -> OAuth2Request:
        method, url, headers, form = request
        made = OAuth2Request(method, url, headers=headers)
        made.payload = BasicOAuth2Payload(form)
        return made

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        return JSONResponse(body, status, dict(headers))


class OAuthServer:
    """`forms`: the requests it got, in order."""

    def __init__(self) -> None:
        self.issuer = self.url = ""
        self.key = ECKey.generate_key("P-256")
        self.programs: dict[str, Program] = {}
        self.forms: list[dict[str, str]] = []
        self.lasts = 3600
        self.broken: Response | None = None
        """Answers every request, instead of the server."""

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def jwks(self) -> dict[str, Any]:
        return {"keys": [self.key.as_dict(private=False)]}

    def token(self, subject: str, audience: str, *, lasts: float = 300, **claims: Any) -> str:
        """A token of a person, as a login would give it."""
        said = {
            "iss": self.issuer,
            "sub": subject,
            "aud": audience,
            "exp": int(time.time() + lasts),
            **claims,
        }
        return jwt.encode({"alg": "ES256", "typ": "at+jwt"}, said, self.key)

    def exchanges(self) -> list[dict[str, str]]:
        return [form for form in self.forms if form["grant_type"] == EXCHANGE]

    async def answer(self, request: Request) -> Response:
        async with request.form() as form:
            said = {name: str(value) for name, value in form.items()}
        self.forms.append(said)
        if self.broken is not None:
            return self.broken
        made = request.method, str(request.url), {"Authorization": request.headers["authorization"]}, said
        answered: Response = self._server.create_token_response(made)
        return answered

    async def keys(self, request: Request) -> Response:
        return JSONResponse(self.jwks())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        routes = [Route("/token", self.answer, methods=["POST"]), Route("/keys", self.keys)]
        app = Starlette(routes=routes)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none"))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        config = server.config
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        try:
            port = server.servers[0].sockets[0].getsockname()[1]
            self.issuer = self.url = f"http://127.0.0.1:{port}"
            self._server = _Server(self)
            self._server.register_grant(ClientCredentialsGrant)
            self._server.register_grant(_TokenExchange)
            self._server.register_token_generator("default", _Tokens(self))
            looping = asyncio.create_task(server.main_loop())
            yield
            server.should_exit = True
            await looping
        finally:
            await server.shutdown()
