"""An app of ours in one of Starlette's or FastAPI's: as a route for what it answers and nothing else, or behind all other routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import URLPath
from starlette.routing import BaseRoute, Match, NoMatchFound

from dragoman.executor.missing import find_in_package

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


def framework_of(name: str) -> type[Starlette]:
    if name != "fastapi":
        return Starlette
    from fastapi import FastAPI

    return FastAPI


def inside(framework: type[Starlette], app: Any, options: dict[str, Any]) -> Starlette:
    """An application of the framework that leaves to `app` what it has no route for, and starts and stops it."""
    given = options.pop("lifespan", None)

    @asynccontextmanager
    async def lifespan(outer: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            await app.start()
            stack.push_async_callback(app.stop)
            yield await stack.enter_async_context(given(outer)) if given is not None else None

    outer = framework(**options, lifespan=lifespan)
    outer.router.default = app
    return outer


__getattr__ = find_in_package
