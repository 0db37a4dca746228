"""Agents that talk A2A, in every version of it, and keep their tasks when the process dies.

Agent         write an agent: `@agent.skill` on a function, then `agent.run()`
Turn          what a skill holds while it works: status, artifacts, questions, steps
connect       talk to any agent, of any version
wrap          serve an agent of LangGraph, pydantic-ai, the OpenAI Agents SDK and others
serve         several agents in one process; `application` is the same as an ASGI app

The public modules are `dragoman`, `dragoman.auth` (who is calling), `dragoman.client` (credentials, retries),
`dragoman.errors`, `dragoman.push` (receiving notifications), `dragoman.executor` (agents written for the SDK),
`dragoman.mcp` (tools of MCP servers), and for the agents of frameworks `dragoman.adapters.langgraph`,
`dragoman.adapters.openai_agents`, `dragoman.adapters.pydantic_ai` and `dragoman.adapters.smolagents`. Their
`__all__` lists what is public. Every other module is internal and may change in any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman import errors
from dragoman.agent.agent import Agent, AgentExtension, MethodCall
from dragoman.agent.extensions import (
    QuestionsExtension,
    TimestampExtension,
    TraceabilityExtension,
    UsageExtension,
)
from dragoman.engine.artifact_writer import ArtifactWriter
from dragoman.engine.conversation import ConversationMessage
from dragoman.engine.streamed import Result, StartOver, Status
from dragoman.engine.tools import Tool, ToolResult
from dragoman.engine.turn import Turn
from dragoman.model.card import AgentCard, Extension, Provider, Skill
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ops import AuthenticationInfo, Principal, PushConfig
from dragoman.model.questions import Approval, Ask, AskedQuestion
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus
from dragoman.model.usage import TaskUsage, TokenUsage

if TYPE_CHECKING:
    from dragoman.adapters.wrap import wrap
    from dragoman.client import Client, Reply, TaskFailed, connect, connect_sync
    from dragoman.observe.limit import Quota
    from dragoman.observe.otel import OpenTelemetry
    from dragoman.push import PushOptions
    from dragoman.server.application import application
    from dragoman.server.limits import Limits
    from dragoman.server.runtime import serve

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentCard",
    "AgentExtension",
    "Approval",
    "Artifact",
    "ArtifactUpdate",
    "ArtifactWriter",
    "Ask",
    "AskedQuestion",
    "AuthenticationInfo",
    "Client",
    "ConversationMessage",
    "Extension",
    "Limits",
    "Message",
    "MethodCall",
    "OpenTelemetry",
    "Part",
    "Principal",
    "Provider",
    "PushConfig",
    "PushOptions",
    "QuestionsExtension",
    "Quota",
    "Reply",
    "Result",
    "Role",
    "Skill",
    "StartOver",
    "Status",
    "StatusUpdate",
    "Task",
    "TaskFailed",
    "TaskState",
    "TaskStatus",
    "TaskUsage",
    "TimestampExtension",
    "TokenUsage",
    "Tool",
    "ToolResult",
    "TraceabilityExtension",
    "Turn",
    "UsageExtension",
    "application",
    "connect",
    "connect_sync",
    "errors",
    "serve",
    "wrap",
]

_LAZY = {
    "Client": "dragoman.client",
    "Limits": "dragoman.server.limits",
    "OpenTelemetry": "dragoman.observe.otel",
    "PushOptions": "dragoman.push",
    "Quota": "dragoman.observe.limit",
    "Reply": "dragoman.client",
    "TaskFailed": "dragoman.client",
    "application": "dragoman.server.application",
    "connect": "dragoman.client",
    "connect_sync": "dragoman.client",
    "serve": "dragoman.server.runtime",
    "wrap": "dragoman.adapters.wrap",
}


if not TYPE_CHECKING:  # else type checkers accept every name

    def __getattr__(name: str) -> Any:
        """Import the server and the client when they are first used: a client needs no server, and a server no client."""
        if name in _LAZY:
            from importlib import import_module

            return getattr(import_module(_LAZY[name]), name)
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
