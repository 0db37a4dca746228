"""An app of ours as a route of Starlette's, for what it answers and nothing else: other routes of the same application go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.datastructures import URLPath
from starlette.routing import BaseRoute, Match, NoMatchFound

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class AppRoute(BaseRoute):
    """`app()` under `url`, though it answers at `path()` itself."""

    def __init__(self, app: Callable[[], Any], url: str, path: Callable[[], str]) -> None:
        self._app, self._url, self._path = app, url.rstrip("/"), path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        moved = self._moved(scope)
        return (Match.FULL, moved) if self._app().serves({**scope, **moved}) else (Match.NONE, {})

    def _moved(self, scope: Scope) -> Scope:
        """What changes of a request so that the app finds it where it answers."""
        here, there = self._url, self._path().rstrip("/")
        root: str = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"].removeprefix(root)
        if here == there or (path != here and not path.startswith(here + "/")):
            return {}
        moved = root + there + path.removeprefix(here)
        return {"path": moved or "/", "raw_path": None}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app()(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)
