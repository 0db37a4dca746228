"""Puts the ASGI app of an agent into an application of Starlette or FastAPI: as a route, or for all that no route serves."""

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
    """A route that serves `app()` at `url`. The app itself expects its requests at `path()`. Other routes get what it does not serve."""

    def __init__(self, app: Callable[[], Any], url: str, path: Callable[[], str]) -> None:
        self._app, self._url, self._path = app, url.rstrip("/"), path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        moved = self._moved(scope)
        return (Match.FULL, moved) if self._app().serves({**scope, **moved}) else (Match.NONE, {})

    def _moved(self, scope: Scope) -> Scope:
        """The members of the ASGI scope to replace, so that the path is one of the app."""
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
    """An application of the framework. `app` serves what it has no route for, and is started and stopped with it."""
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
