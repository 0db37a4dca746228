"""Agents that talk A2A, in every version of it, and keep their tasks when the process dies.

Agent     write an agent: `@agent.skill` on a function, then `agent.run()`
Turn      what a skill holds while it works: status, artifacts, questions, steps
connect   talk to any agent, of any version
serve     several agents in one process

`Skill`, `Extension`, `Provider`, `Principal`, `PushConfig` and `PushOptions` are here, too; `dragoman.auth` has the ways to say
who is calling, `dragoman.errors` what goes wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman import errors
from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.model.card import AgentCard, Extension, Provider, Skill
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ops import Principal, PushConfig
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState

if TYPE_CHECKING:
    from dragoman.client import Client, Reply, TaskFailed, connect, connect_sync
    from dragoman.push import PushOptions
    from dragoman.server.runtime import serve

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentCard",
    "Artifact",
    "ArtifactUpdate",
    "Client",
    "Extension",
    "Message",
    "Part",
    "Principal",
    "Provider",
    "PushConfig",
    "PushOptions",
    "Reply",
    "Role",
    "Skill",
    "StatusUpdate",
    "Task",
    "TaskFailed",
    "TaskState",
    "Turn",
    "connect",
    "connect_sync",
    "errors",
    "serve",
]

_LAZY = {
    "Client": "dragoman.client",
    "PushOptions": "dragoman.push",
    "Reply": "dragoman.client",
    "TaskFailed": "dragoman.client",
    "connect": "dragoman.client",
    "connect_sync": "dragoman.client",
    "serve": "dragoman.server.runtime",
}


def __getattr__(name: str) -> Any:
    """The server and the client are imported when they are first asked for: a client needs no server, nor the reverse."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
