"""Clients that do not give up: one tells a story by answering its questions, one only listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from tests import raw
from tests.raw import StreamEvent
from tests.serving import Server
from tests.waiting import elapse

TERMINAL = {f"TASK_STATE_{word}" for word in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}
SETTLED = TERMINAL | {"TASK_STATE_INPUT_REQUIRED"}

BROKEN = (OSError, EOFError, asyncio.IncompleteReadError)


def state_of(heard: StreamEvent) -> str:
    """The state an event speaks of; empty when it speaks of none."""
    (event,) = heard.result.values()
    state: str = event.get("status", {}).get("state", "")
    return state


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": f"m-{text}", "role": "ROLE_USER", "parts": [{"text": text}], **more}}


async def persist(
    server: Server, events: Callable[[], AsyncIterator[StreamEvent]]
) -> AsyncIterator[StreamEvent]:
    """The events of `events()`, and of another `events()` whenever the connection breaks."""
    failures = 0
    while True:
        lives = server.lives
        try:
            async with aclosing(events()) as heard:  # type: ignore[type-var]
                async for event in heard:
                    if _is_unavailable(event):
                        break
                    failures = 0
                    yield event
        except ConnectionRefusedError:
            await server.life_after(lives)
        except raw.Refused as refused:
            if refused.status != 503:  # anything but "shutting down", or "the database is away"
                raise
        except BROKEN:
            pass
        failures += 1
        assert failures < 100, "the server breaks every connection"
        await elapse(min(failures * 0.005, 0.1))  # a dying server takes connections until it is dead


def _is_unavailable(event: StreamEvent) -> bool:
    """The database went away in the middle of a stream."""
    details = event.document.get("error", {}).get("data", [])
    return any(each.get("reason") == "UNAVAILABLE" for each in details)


async def insist(server: Server, method: str, params: Any, **headers: str) -> dict[str, Any]:
    """Call until an answer comes."""
    while True:
        lives = server.lives
        try:
            return await raw.call(server.url, method, params, **headers)
        except ConnectionRefusedError:
            await server.life_after(lives)
        except raw.Refused as refused:
            if refused.status != 503:
                raise
            await elapse(0.1)
        except BROKEN:
            await elapse(0.01)  # as above


class Teller:
    """Has a story told: sends its title, answers its questions, and repeats itself when nobody confirms."""

    def __init__(self, server: Server, title: str, answers: tuple[str, ...] = ("Ann", "3")) -> None:
        self.server, self.title, self._answers = server, title, answers
        self.task = ""
        self.named = asyncio.Event()
        self.heard: list[list[StreamEvent]] = []
        """What each of its messages brought."""

    async def tell(self) -> dict[str, Any]:
        """The task at its end."""
        for n, text in enumerate((self.title, *self._answers)):
            await self._say(text, key=f"{self.title}/{n}")
        document = await insist(self.server, "GetTask", {"id": self.task})
        assert "result" in document, document
        task: dict[str, Any] = document["result"]
        return task

    async def _say(self, text: str, key: str) -> None:
        heard: list[StreamEvent] = []
        self.heard.append(heard)
        received = message(
            text, **({"taskId": self.task} if self.task else {"metadata": {"skillId": "story"}})
        )

        def events() -> AsyncIterator[StreamEvent]:
            if not heard:
                return raw.stream(self.server.url, "SendStreamingMessage", received, idempotency_key=key)
            after = str(heard[-1].seq)
            return raw.stream(self.server.url, "SubscribeToTask", {"id": self.task}, last_event_id=after)

        async with aclosing(persist(self.server, events)) as stream:  # type: ignore[type-var]
            async for event in stream:
                heard.append(event)
                if not self.task:
                    self.task = event.result["task"]["id"]
                    self.named.set()
                if state_of(event) in SETTLED:
                    break


class Listener:
    """Hears a story from its first event to its end."""

    def __init__(self, server: Server, teller: Teller) -> None:
        self.heard: list[StreamEvent] = []
        self._server, self._teller = server, teller

    def _subscribe(self) -> AsyncIterator[StreamEvent]:
        last = self.heard[-1].seq if self.heard else 0
        return raw.stream(
            self._server.url, "SubscribeToTask", {"id": self._teller.task}, last_event_id=str(last)
        )

    async def listen(self, on_event: Callable[[int], None] = lambda _: None) -> list[StreamEvent]:
        await self._teller.named.wait()
        async with aclosing(persist(self._server, self._subscribe)) as events:  # type: ignore[type-var]
            async for event in events:
                self.heard.append(event)
                on_event(len(self.heard))
                if state_of(event) in TERMINAL:
                    break
        return self.heard
