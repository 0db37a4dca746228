"""What the verbs that look into a server's store have in common. The server may run meanwhile, or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from dragoman.cli.reach import failed
from dragoman.engine.protocols import Store
from dragoman.errors import A2AError
from dragoman.stores import NewerDatabase, open_store


async def looked_into(url: str, work: Callable[[Store], Awaitable[int]]) -> int:
    """Open the store, do `work`, and turn what goes wrong into a sentence and an exit code."""
    try:
        store = open_store(_existing(url))
    except ValueError as error:
        raise SystemExit(f"dragoman: {error}") from None
    try:
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()
    except A2AError as error:
        return failed(error)
    except NewerDatabase as error:
        raise SystemExit(f"dragoman: {error}") from None


def _existing(url: str) -> str:
    """Looking must not make an empty store. (A database server has those that somebody made.)"""
    path = url.removeprefix("sqlite:///")
    if url.startswith("memory:") or (path != url and not Path(path).is_file()):
        raise SystemExit(f"dragoman: there is no store at {url}")
    return url
