"""Keeps notes. Written for a2a-sdk 0.3: a package, types for the checker only, data parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from a2a.server.agent_execution import AgentExecutor
from a2a.types import DataPart, Message, Part, Role, TextPart

if TYPE_CHECKING:
    from a2a.server.agent_execution import RequestContext
    from a2a.server.events import EventQueue


class NotesExecutor(AgentExecutor):
    def __init__(self) -> None:
        self.notes: list[str] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        for part in context.message.parts:
            if isinstance(part.root, TextPart):
                self.notes.append(part.root.text)
            elif isinstance(part.root, DataPart):
                self.notes.append(str(part.root.data["note"]))
        reply = Message(
            role=Role.agent,
            message_id=f"reply-{len(self.notes)}",
            parts=[Part(root=TextPart(text=", ".join(self.notes)))],
        )
        await event_queue.enqueue_event(reply)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        from a2a.types import UnsupportedOperationError
        from a2a.utils.errors import ServerError

        raise ServerError(error=UnsupportedOperationError())
