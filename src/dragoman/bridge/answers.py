"""Check the answers of an agent before they are passed on, beyond what every client checks (`client/answers.py`).

If a caller continues a task and the agent answers with another task, that answer is an error.

Some servers (a2a-sdk 0.3) store a late update over the end of a canceled task. Then nobody works on the task, and its state is
`working` for ever. So `CancelCheck` gets the task some time after a cancel, and cancels it again if it is not canceled any more. In
between, callers of this process see the task as canceled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from dragoman.errors import A2AError, InvalidAgentResponse, keep_going
from dragoman.model.content import Message
from dragoman.model.ops import Call, CancelTask, GetTask, Request, SendMessage
from dragoman.model.task import Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman.bridge")

_CHECK_SECONDS = (1.0, 2.0, 4.0)
"""Pauses before each check. Late updates arrive within this time."""
_MAX_CHECKED = 1000
"""Cancels that are checked at a time. Further ones are not checked."""

Ask = Callable[[Call, Request], Awaitable[Any]]


def check_same_task(request: Request, answer: Any) -> None:
    """Raises `InvalidAgentResponse` if the answer to a message for a task is about another task."""
    if not isinstance(request, SendMessage) or not request.message.task_id or isinstance(answer, Message):
        return
    if (answer.id if isinstance(answer, Task) else answer.task_id) != request.message.task_id:
        raise InvalidAgentResponse("the agent sent another task than the one it was asked for")


class CancelCheck:
    """`ask` calls the agent. Only for agents that may undo cancels: a Dragoman server does not."""

    def __init__(self, name: str, ask: Ask) -> None:
        self._name, self._ask = name, ask
        self._canceled: dict[str, TaskStatus] = {}
        self._checks: set[asyncio.Task[None]] = set()

    def begin(self, call: Call, request: CancelTask, answer: Any) -> None:
        """Start to check a cancel that the agent has answered."""
        if not isinstance(answer, Task) or answer.state is not TaskState.CANCELED:
            return
        if request.id in self._canceled or len(self._checks) >= _MAX_CHECKED:
            return
        self._canceled[request.id] = answer.status
        check = asyncio.create_task(self._check(replace(call, deadline=None), request))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    def correct(self, result: Any) -> Any:
        """The task that callers see: canceled, if it was canceled a moment ago and the agent says otherwise."""
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
                logger.warning("%s keeps undoing the cancel of a task", self._name)
        finally:
            del self._canceled[request.id]
