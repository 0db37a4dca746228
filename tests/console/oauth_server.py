"""A small OAuth server with an agent behind it, on one loopback origin: it checks what a real one checks."""

from __future__ import annotations

import base64
import hashlib
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from dragoman.server.http1.server import HttpServer
from tests.client.fakes import Answer, Asked, Site, answer, card, page

CLIENT, SECRET = "console", "s3cret-of-the-client"


class OAuthSite(Site):
    """`denies`: the person says no. `valid` are the access tokens that the agent takes."""

    def __init__(self, base: str, *, flow: str, scheme: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.base, self.valid, self.codes = base, set[str](), dict[str, dict[str, str]]()
        self.denies = False
        self.approved = False
        urls = {
            "authorizationUrl": f"{base}/authorize",
            "deviceAuthorizationUrl": f"{base}/device",
            "tokenUrl": f"{base}/token",
            "scopes": {"read": "Read"},
        }
        declared = scheme or {"oauth2SecurityScheme": {"flows": {flow: urls}}}
        interface = {"url": f"{base}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        self.document = card(
            supportedInterfaces=[interface],
            securitySchemes={"it": declared},
            securityRequirements=[{"schemes": {"it": {"list": []}}}],
        )
        self.pages = {
            "/.well-known/agent-card.json": lambda asked: page(self.document),
            "/rpc": self.rpc,
            "/token": self.token,
            "/authorize": self.authorize,
            "/device": self.device,
        }

    def rpc(self, asked: Asked) -> Answer:
        shown = asked.headers.get("authorization", "").removeprefix("Bearer ")
        shown = shown or asked.headers.get("x-key", "") or asked.query.get("k", "")
        return answer(asked) if shown in self.valid else page({}, 401)

    def authorize(self, asked: Asked) -> Answer:
        query = asked.query
        assert query["response_type"] == "code" and query["code_challenge_method"] == "S256"
        back = {"state": query["state"]}
        if self.denies:
            back |= {"error": "access_denied", "error_description": "<b>she said no</b>"}
        else:
            code = secrets.token_urlsafe(8)
            self.codes[code] = query
            back |= {"code": code, "session_state": "what some servers add"}
        return 302, {"location": f"{query['redirect_uri']}?{urlencode(back)}"}, b""

    def device(self, asked: Asked) -> Answer:
        begun = {"device_code": "device-code-of-somebody", "user_code": "ABCD-EFGH", "interval": 0}
        return page({**begun, "verification_uri": f"{self.base}/activate"})

    def token(self, asked: Asked) -> Answer:
        form = asked.form
        if form["grant_type"] == "client_credentials":
            pair = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            return (
                self._give()
                if asked.headers.get("authorization") == f"Basic {pair}"
                else self._no("invalid_client")
            )
        if form["grant_type"] == "authorization_code":
            begun = self.codes.pop(form["code"], None)  # a code works once
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            fits = begun is not None and begun["code_challenge"] == challenge
            if not fits or begun is None or begun["redirect_uri"] != form["redirect_uri"]:
                return self._no("invalid_grant")
            return self._give()
        if self.denies:
            return self._no("access_denied")
        return self._give() if self.approved else self._no("authorization_pending")

    def _give(self) -> Answer:
        token = f"access-{secrets.token_urlsafe(16)}"
        self.valid.add(token)
        return page({"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    def _no(self, error: str) -> Answer:
        return page({"error": error}, 400)


@asynccontextmanager
async def oauth_server(flow: str = "authorizationCode", **options: Any) -> AsyncIterator[OAuthSite]:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    site = OAuthSite(f"http://127.0.0.1:{listener.getsockname()[1]}", flow=flow, **options)
    server = HttpServer(site, listener)
    await server.start()
    try:
        yield site
    finally:
        await server.stop()
