"""The client without `await`, for scripts and notebooks: the same one, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack

from dragoman.client.client import Client, connect
from dragoman.client.connection import ConnectOptions, Link
from dragoman.client.content import SendOptions
from dragoman.client.reply import AnswerOptions, Piece, Reply, Stream
from dragoman.client.skills import Skills
from dragoman.model.card import AgentCard
from dragoman.model.ops import PushConfig
from dragoman.model.task import Task, TaskState

T = TypeVar("T")


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dragoman-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C: nobody waits for the result any more
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncReply(Reply):
    """A `Reply` whose methods do not need `await`."""

    _sync_client: SyncClient

    def wait(self, timeout: float | None = None) -> SyncReply:  # type: ignore[override]
        return self._sync_client._reply(Reply.wait(self, timeout))

    def cancel(self) -> SyncReply:  # type: ignore[override]
        return self._sync_client._reply(Reply.cancel(self))

    def answer(  # type: ignore[override]
        self, *content: Any, timeout: float | None = None, **options: Unpack[AnswerOptions]
    ) -> SyncReply:
        return self._sync_client._reply(Reply.answer(self, *content, timeout=timeout, **options))


class SyncStream:
    """A `Stream` for a plain `for` loop."""

    def __init__(self, client: SyncClient, stream: Stream) -> None:
        self._client, self._stream = client, stream

    def __iter__(self) -> Iterator[Piece]:
        return self._client._each(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def task(self) -> Task | None:
        return self._stream.task

    @property
    def reply(self) -> SyncReply:
        return self._client._to_sync(self._stream.reply)

    def close(self) -> None:
        """Stop reading. The task goes on."""
        self._client._run(self._stream.aclose())


class SyncClient:
    """`with connect_sync(...) as agent:` and then `agent("text")`. Each method does what `Client`'s does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop: _Loop | None = None
        self._opening = threading.RLock()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Find the agent and read its card. `with` does it; without that, `close` it when you are done."""
        with self._opening:
            if self._loop is None:
                self._loop = _Loop()
                try:
                    self._run(self._client.open())
                except BaseException:
                    self.close()
                    raise
        return self

    def close(self) -> None:
        with self._opening:
            if self._loop is not None:
                loop, self._loop = self._loop, None
                with suppress(Exception):
                    loop.run(self._client.close())
                loop.close()

    @property
    def card(self) -> AgentCard:
        return self._client.card

    @property
    def skills(self) -> Skills[SyncReply, SyncStream]:
        """The agent's skills as functions: `agent.skills.book(city="Rome")`."""
        return Skills(self.card, self.__call__, self.stream)

    @property
    def link(self) -> Link:
        return self._client.link

    @property
    def version(self) -> str:
        return self._client.version

    @property
    def url(self) -> str:
        return self._client.url

    def __call__(
        self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]
    ) -> SyncReply:
        return self._reply(self._client(*content, timeout=timeout, **options))

    def send(self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]) -> SyncReply:
        return self._reply(self._client.send(*content, timeout=timeout, **options))

    def stream(
        self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]
    ) -> SyncStream:
        return SyncStream(self, self._client.stream(*content, timeout=timeout, **options))

    def call_method(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        return self._run(self._client.call_method(method, params, timeout=timeout))

    def get(self, task: str | Task, *, history: int | None = None, timeout: float | None = None) -> Task:
        return self._run(self._client.get(task, history=history, timeout=timeout))

    def list(
        self,
        *,
        context: str = "",
        state: TaskState | str = TaskState.UNSPECIFIED,
        since: str = "",
        history: int | None = None,
        artifacts: bool = False,
        page_size: int | None = None,
    ) -> Iterator[Task]:
        found = self._client.list(
            context=context,
            state=state,
            since=since,
            history=history,
            artifacts=artifacts,
            page_size=page_size,
        )
        return self._each(found)

    def cancel(self, task: str | Task, *, timeout: float | None = None) -> Task:
        return self._run(self._client.cancel(task, timeout=timeout))

    def subscribe(
        self, task: str | Task, *, after: int | None = None, timeout: float | None = None
    ) -> SyncStream:
        return SyncStream(self, self._client.subscribe(task, after=after, timeout=timeout))

    def wait(self, task: str | Task, *, timeout: float | None = None) -> SyncReply:
        return self._reply(self._client.wait(task, timeout=timeout))

    def create_push(
        self,
        task: str | Task,
        url: str,
        *,
        id: str = "",
        token: str = "",
        scheme: str = "",
        credentials: str = "",
    ) -> PushConfig:
        given = {"id": id, "token": token, "scheme": scheme, "credentials": credentials}
        return self._run(self._client.create_push(task, url, **given))

    def get_push(self, task: str | Task, id: str = "") -> PushConfig:
        return self._run(self._client.get_push(task, id))

    def list_push(self, task: str | Task) -> Sequence[PushConfig]:
        return self._run(self._client.list_push(task))

    def delete_push(self, task: str | Task, id: str) -> None:
        self._run(self._client.delete_push(task, id))

    def extended_card(self) -> AgentCard:
        return self._run(self._client.extended_card())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("not connected: use `with connect_sync(...)`")
        return self._loop.run(work)

    def _reply(self, work: Coroutine[Any, Any, Reply]) -> SyncReply:
        return self._to_sync(self._run(work))

    def _to_sync(self, reply: Reply) -> SyncReply:
        result = reply.task or reply.message
        assert result is not None
        made = SyncReply.of(self._client, result)
        assert isinstance(made, SyncReply)
        made._sync_client = self
        return made

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def advance() -> tuple[bool, T | None]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while (answer := self._run(advance()))[0]:
            yield answer[1]  # type: ignore[misc]


def connect_sync(
    target: Any, *, timeout: float | None = None, **options: Unpack[ConnectOptions]
) -> SyncClient:
    """`connect` without `await`: `with connect_sync("https://agent.example.com") as agent: print(agent("hello"))`."""
    return SyncClient(connect(target, timeout=timeout, **options))
