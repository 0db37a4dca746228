"""Cancels that an agent says it did, and undoes.

Some servers (a2a-sdk 0.3) store a late update of the work over the end of a canceled task. The agent answered that the task is canceled,
nobody works on it, and from then on it is called working for ever. So a while after a cancel the task is asked for, and canceled
again if it was undone. In between, callers of this process are told what the answer to the cancel was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from dragoman.errors import A2AError, keep_going
from dragoman.model.ops import Call, CancelTask, GetTask, Request
from dragoman.model.task import Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman.bridge")

_CHECK_SECONDS = (1.0, 2.0, 4.0)
"""When the task is asked for, each after the one before. Late updates have come by then."""
_MAX_CHECKED = 1000
"""Cancels that are checked at a time. More are not."""

Ask = Callable[[Call, Request], Awaitable[Any]]


class CancelCheck:
    """`ask` calls the agent. Only for agents that may undo cancels: a Dragoman server does not."""

    def __init__(self, name: str, ask: Ask) -> None:
        self._name, self._ask = name, ask
        self._canceled: dict[str, TaskStatus] = {}
        self._checks: set[asyncio.Task[None]] = set()

    def begin(self, call: Call, request: CancelTask, answer: Any) -> None:
        """The agent answered a cancel."""
        if not isinstance(answer, Task) or answer.state is not TaskState.CANCELED:
            return
        if request.id in self._canceled or len(self._checks) >= _MAX_CHECKED:
            return
        self._canceled[request.id] = answer.status
        check = asyncio.create_task(self._check(replace(call, deadline=None), request))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    def correct(self, result: Any) -> Any:
        """What callers are told of a task: one that was canceled a moment ago is canceled, whatever the agent says."""
        if isinstance(result, Task) and not result.state.terminal and result.id in self._canceled:
            return replace(result, status=self._canceled[result.id])
        return result

    async def close(self) -> None:
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def _check(self, call: Call, request: CancelTask) -> None:
        try:
            with keep_going(logger, f"checking a cancel of {self._name}", A2AError):
                for seconds in _CHECK_SECONDS:
                    await asyncio.sleep(seconds)
                    now: Task = await self._ask(call, GetTask(id=request.id, history_length=0))
                    if now.state.terminal:
                        return
                    await self._ask(call, request)
                logger.warning("%s undoes the cancel of a task again and again", self._name)
        finally:
            del self._canceled[request.id]
