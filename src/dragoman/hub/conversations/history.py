"""The history of a conversation in prompts: the newest messages, and a summary of older ones.

When the messages would fill three quarters of the model's window, the model summarizes all but the last 16. The summary is
stored with the conversation, and the next summary includes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.hub.models.ask import ModelReply, ask, recorded_reply
from dragoman.hub.models.model import CHARACTERS_PER_TOKEN, ChatMessage, Model, Prompt, traits_of
from dragoman.hub.quote import HOW_TO_READ, MARK, quote
from dragoman.hub.store.conversations import Conversations, EarlierMessage
from dragoman.hub.tools.tool import Session

KEPT_MESSAGES = 16
"""Messages that are not summarized."""
_WINDOW_SHARE = 0.75
_SYSTEM = """Sum up this conversation, so that it can go on without its beginning. Keep names, numbers, decisions, what the user
wants and what is still open. Leave out pleasantries. Write notes, not sentences about the conversation."""


class ConversationHistory:
    """Returns the earlier messages for a prompt."""

    def __init__(self, conversations: Conversations, model: Model) -> None:
        self._conversations, self._model = conversations, model

    async def __call__(self, session: Session) -> list[ChatMessage]:
        if not session.conversation or session.depth:
            return []  # a delegated agent sees only its task
        summary, earlier = await self._conversations.before(session.conversation, session.turn.task_id)
        room = int(
            traits_of(self._model, session.constitution.model).window * _WINDOW_SHARE * CHARACTERS_PER_TOKEN
        )
        if (
            room
            and len(earlier) > KEPT_MESSAGES
            and len(summary) + sum(len(each.content) for each in earlier) > room
        ):
            summary, earlier = await self._summarize(session, summary, earlier, room)
        elif (before := recorded_reply(session.turn, "summary")) is not None:
            await self._count_usage(session, before)  # summarized before a crash
        messages = [ChatMessage(role=each.role, content=each.content) for each in earlier]
        if summary:
            text = f"[EARLIER IN THIS CONVERSATION]\n{quote(summary)}\n[END EARLIER]"
            messages.insert(0, ChatMessage(role="user", content=text))
        return messages

    async def _summarize(
        self, session: Session, summary: str, earlier: Sequence[EarlierMessage], room: int
    ) -> tuple[str, Sequence[EarlierMessage]]:
        """A new summary, and the messages it does not cover. If the model fails, nothing changes."""
        old, new = earlier[:-KEPT_MESSAGES], earlier[-KEPT_MESSAGES:]
        lines = [f"(before that)\n{quote(summary)}"] if summary else []
        lines += [f"{each.role}:\n{quote(each.content)}" for each in old]
        text = "\n\n".join(lines)
        if len(text) > room:
            text = MARK + text[-room:]  # the cut may be inside a quoted line
        prompt = Prompt(
            model=session.constitution.model,
            system=f"{_SYSTEM}\n{HOW_TO_READ}",
            messages=(ChatMessage(role="user", content=text),),
        )
        reply = await ask(session.turn, "summary", self._model, prompt)
        await self._count_usage(session, reply)
        if reply.error or not reply.text.strip():
            return summary, earlier
        await self._conversations.store_summary(session.conversation, reply.text.strip(), old[-1].id)
        return reply.text.strip(), new

    async def _count_usage(self, session: Session, reply: ModelReply) -> None:
        await session.count_usage(reply.usage, traits_of(self._model, session.constitution.model).name)
