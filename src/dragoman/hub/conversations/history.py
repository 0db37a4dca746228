"""What an agent is reminded of in a conversation: the newest messages as they were, and long ones summed up before that.

When what was said would fill three quarters of the model's window, the model itself sums up all but the last messages. The
summary is kept with the conversation, and the next one begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.hub.conversations.conversations import Conversations, EarlierMessage
from dragoman.hub.models.ask import Reply, ask, recorded_reply
from dragoman.hub.models.model import CHARACTERS_PER_TOKEN, ChatMessage, Model, Prompt, traits_of
from dragoman.hub.tools.tool import Session

KEPT = 16
"""Messages that stay as they are."""
_FULL = 0.75
_SYSTEM = """Sum up this conversation, so that it can go on without its beginning. Keep names, numbers, decisions, what the user
wants and what is still open. Leave out pleasantries. Write notes, not sentences about the conversation."""


class ConversationHistory:
    """Gives what was said before, as `loop.History` wants it."""

    def __init__(self, conversations: Conversations, model: Model) -> None:
        self._conversations, self._model = conversations, model

    async def __call__(self, session: Session) -> list[ChatMessage]:
        if not session.conversation or session.depth:
            return []  # who is asked by another agent sees what that one writes
        summary, said = await self._conversations.before(session.conversation, session.turn.task_id)
        room = int(traits_of(self._model, session.constitution.model).window * _FULL * CHARACTERS_PER_TOKEN)
        if room and len(said) > KEPT and len(summary) + sum(len(each.content) for each in said) > room:
            summary, said = await self._shortened(session, summary, said, room)
        elif (before := recorded_reply(session.turn, "summary")) is not None:
            await self._count_usage(
                session, before
            )  # a crash came between, and what was said is short by now
        told = [ChatMessage(role=each.role, content=each.content) for each in said]
        if summary:
            text = f"[EARLIER IN THIS CONVERSATION]\n{summary}\n[END EARLIER]"
            told.insert(0, ChatMessage(role="user", content=text))
        return told

    async def _shortened(
        self, session: Session, summary: str, said: Sequence[EarlierMessage], room: int
    ) -> tuple[str, Sequence[EarlierMessage]]:
        """Another summary, and the messages it does not cover. If it cannot be had, everything stays as it is."""
        old, new = said[:-KEPT], said[-KEPT:]
        lines = [f"(before that) {summary}"] if summary else []
        lines += [f"{each.role}: {each.content}" for each in old]
        prompt = Prompt(
            model=session.constitution.model,
            system=_SYSTEM,
            messages=(ChatMessage(role="user", content="\n\n".join(lines)[-room:]),),
        )
        reply = await ask(session.turn, "summary", self._model, prompt)
        await self._count_usage(session, reply)
        if reply.error or not reply.text.strip():
            return summary, said
        await self._conversations.store_summary(session.conversation, reply.text.strip(), old[-1].id)
        return reply.text.strip(), new

    async def _count_usage(self, session: Session, reply: Reply) -> None:
        await session.count_usage(reply.usage, traits_of(self._model, session.constitution.model).name)
