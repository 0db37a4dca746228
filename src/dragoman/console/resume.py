"""Tests whether an agent elsewhere can resume an interrupted stream."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from dragoman.client import Client
from dragoman.client.content import build_request
from dragoman.errors import A2AError
from dragoman.model.fold import Fold
from dragoman.model.ids import timestamp
from dragoman.model.ops import Call, SubscribeToTask
from dragoman.model.task import Task
from dragoman.observe.redact import redact_text


class ResumeTest:
    """Sends a message, drops the connection after the first event, and checks that the other events come, each once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._steps: list[dict[str, str]] = []
        self._fold = Fold()
        self._seqs: list[int] = []

    def _note(self, text: str) -> None:
        self._steps.append({"time": timestamp(), "text": text})

    def _result(self, ok: bool, method: str, message: str, **more: Any) -> dict[str, Any]:
        counts = {"missed": 0, "twice": sum(n - 1 for n in Counter(self._seqs).values()), **more}
        task = self._fold.task_id or None
        return {"ok": ok, "method": method, "message": message, "steps": self._steps, "task": task, **counts}

    async def run(self, text: str) -> dict[str, Any]:
        client = self._client
        link = client.link
        if not link.found.card.capabilities.streaming:
            return self._result(
                False, "none", "The card does not offer streaming, so there is nothing to resume."
            )
        call, request = build_request((text,), None)
        began = await self._read(link.peer.stream(call, request), until_task=True)
        self._note(f"Sent a message, and received {began} events. Dropped the connection.")
        if not self._fold.task_id:
            return self._result(False, "none", "The agent answered with a message and made no task.")
        if self._fold.settled:
            return self._result(
                False,
                "none",
                "The task was over before the connection could be dropped: try a longer message.",
            )
        after = self._seqs[-1] if self._seqs and self._seqs[-1] else None
        return await self._resume(call, after)

    async def _resume(self, call: Call, after: int | None) -> dict[str, Any]:
        subscribe = SubscribeToTask(id=self._fold.task_id, tenant=self._client.link.peer.route.tenant)
        method = "subscribe" if after is None else "last-event-id"
        self._note(f"Subscribed to the task{f' after event {after}' if after is not None else ''}.")
        try:
            events = await self._read(self._client.link.peer.stream(replace(call, after=after), subscribe))
            self._note(f"Received {events} more events. The task is {self._fold.state.word}.")
        except A2AError as error:
            return await self._poll(error)
        task = await self._client.get(self._fold.task_id)
        missed = _count_missed(self._fold, task)
        if missed:
            message = f"The resumed stream left out something: {missed} artifacts differ from the task."
            return self._result(False, method, message, missed=missed)
        again = self._result(True, method, "The stream went on where it was interrupted.")
        if again["twice"]:
            again |= {"ok": False, "message": f"{again['twice']} events came twice."}
        return again

    async def _poll(self, error: A2AError) -> dict[str, Any]:
        self._note(f"The agent refused: {redact_text(error.message)}")
        try:
            task = await self._client.get(self._fold.task_id)
        except A2AError as failed:
            return self._result(
                False, "none", f"The caller cannot get the task any more: {redact_text(failed.message)}"
            )
        self._note(f"Asked for the task: it is {task.state.word}.")
        return self._result(
            False, "poll", "The stream cannot be resumed. A client can only get the task, so it has to poll."
        )

    async def _read(self, batches: Any, *, until_task: bool = False) -> int:
        count = 0
        async with aclosing(batches):
            async for batch in batches:
                for response in batch:
                    count += 1
                    if response.seq:
                        self._seqs.append(response.seq)
                    self._fold.apply(response.event)
                if self._fold.settled or (until_task and self._fold.task_id):
                    break
        return count


def _count_missed(fold: Fold, task: Task) -> int:
    """How many artifacts of the task differ from those in the streams."""
    seen = fold.task
    have = {each.artifact_id: each.text for each in seen.artifacts} if seen is not None else {}
    return sum(have.get(each.artifact_id) != each.text for each in task.artifacts)
