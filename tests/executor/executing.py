"""An executor that is a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.executor import AgentCard, AgentExecutor, EventQueue, ExecutorAgent, RequestContext

Execute = Callable[[RequestContext, EventQueue], Awaitable[None]]


class Executor(AgentExecutor):
    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self.canceled: list[str] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.canceled.append(context.task_id)


def agent_of(execute: Execute, **options: Any) -> ExecutorAgent:
    return ExecutorAgent(Executor(execute), AgentCard(name="Exec", description="Executes"), **options)
