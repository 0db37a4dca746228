"""The console: pages and an API for operators, at /console of a server.

It is a layer above the server, the client and the engine: none of them imports it. It is off unless somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from dragoman.console import about, agents, catalogue, inspect, login, talk, tasks, webhooks
from dragoman.console.access import Access, OneTimeToken, OperatorToken, TokenFile, check_token
from dragoman.console.api import Console
from dragoman.console.login import Logins
from dragoman.console.webhooks import Receivers
from dragoman.push.guard import OutboundGuard
from dragoman.server.address import is_loopback
from dragoman.server.app import Operators
from dragoman.server.options import ServerParts
from dragoman.server.routes import Route

__all__ = ["AgentConsole", "Console"]

Module = Callable[[Console], Sequence[Route]]

FEATURES = ("agents", "tasks", "webhooks", "audit")
CALLING_FEATURES = ("talk", "inspect")


def server_modules(receivers: Receivers | None) -> list[Module]:
    """The modules of a console about its own server."""
    webhook_routes = partial(webhooks.routes, receivers=receivers)
    return [agents.routes, tasks.routes, webhook_routes, catalogue.routes, about.routes]


def server_features(parts: ServerParts) -> tuple[str, ...]:
    """The features that a server has only if its operator turned them on."""
    return ("catalogue",) if parts.catalogue is not None else ()


def calling_modules(
    guard: OutboundGuard,
    logins: Logins,
    *,
    url: str = "",
    handle: str = "",
    act_for: talk.ActFor | None = None,
) -> list[Module]:
    """The modules that call agents: chat, inspector and login. `url` is the agent of the command line, `handle` its login.

    `act_for`: on a hub, returns the principal of a call.
    """
    return [
        partial(talk.routes, guard=guard, logins=logins, act_for=act_for),
        partial(login.routes, logins=logins),
        partial(inspect.routes, guard=guard, logins=logins, url=url, handle=handle),
    ]


class AgentConsole:
    """The console of a server of agents (`dragoman serve --console`): a `ServerConsole`.

    `allow_private`: operators may call agents at private addresses. `one_time`: the token in the URL that is printed.
    `token` is the operator's own. Without one, a token is made. It is stored beside a SQLite store; with other stores, it lasts as long
    as the process.
    """

    def __init__(
        self,
        token: str = "",
        *,
        modules: Sequence[Module] = (),
        features: Sequence[str] = (),
        allow_private: bool = False,
        one_time: OneTimeToken | None = None,
    ) -> None:
        if token:
            check_token(token, "the console")
        self._given = self._token = token
        self._modules, self._features = modules, (*FEATURES, *CALLING_FEATURES, *features)
        self._allow_private = allow_private
        self._one_time = one_time
        self._hosts: list[str] = []
        self._receivers: Receivers | None = None

    def prepare(self, *, host: str, url: str, store: str, public_url: str, tls: bool) -> Sequence[str]:
        loopback = is_loopback(host)
        if not self._given and not loopback:
            raise SystemExit(
                f"dragoman: {host} can be reached from other machines, and the console shows every task: give it a token "
                "(DRAGOMAN_CONSOLE_TOKEN or --console-token-file; `dragoman keys token` makes one)"
            )
        lines: list[str] = []
        if not self._given:
            if store.startswith("sqlite:///"):
                file = TokenFile(Path(f"{store.removeprefix('sqlite:///')}-console"))
                self._token = file.read()
            else:
                self._token = OneTimeToken().text
        self._receivers = Receivers()
        self._hosts = [name for name in (host, urlsplit(public_url).hostname or "") if name]
        if loopback:
            self._one_time = self._one_time or OneTimeToken()
            lines.append(f"console: {url}/console/#token={self._one_time.text}")
        else:
            lines.append(
                f"console: {public_url.rstrip('/') or url}/console/ (log in with the operator token)"
            )
        return lines

    def open(self, parts: ServerParts) -> Operators:
        token = self._token
        if not token:
            raise ValueError("a console needs an operator token: AgentConsole(token)")
        access = Access(OperatorToken(token), one_time=self._one_time, hosts=self._hosts)
        guard = OutboundGuard(allow_private=self._allow_private)
        calling = calling_modules(guard, Logins(guard))
        return Console(
            access,
            kind="server",
            features=(*self._features, *server_features(parts)),
            modules=[*server_modules(self._receivers), *self._modules, *calling],
            server=parts,
        )
