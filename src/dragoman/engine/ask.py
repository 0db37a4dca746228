"""A question of a turn: answered by mail that came since, or parked until it comes.

Nothing waits for an answer. The function is unwound, and runs again when there is mail; a `step` of the log says which
message was the answer to which question, so that one that was answered is not asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.engine.log import Record, Step
from dragoman.model.content import Message
from dragoman.model.task import TaskState
from dragoman.model.values import Unfit, answer_as

if TYPE_CHECKING:
    from dragoman.engine.turn import Turn


class Parked(BaseException):
    """Unwinds the function; the turn goes on when the answer comes. Not an `Exception`: agent code must let it pass."""

    def __init__(self, state: TaskState, message: Message, metadata: dict[str, Any]) -> None:
        super().__init__(state.word)
        self.state, self.message, self.metadata = state, message, metadata


async def answer(
    turn: Turn, state: TaskState, question: str | Message, kind: Any, key: str, metadata: dict[str, Any]
) -> Any:
    """The answer to `question`, as a `kind`. One that does not fit is asked for again. Raises `Parked`."""
    attempt = 0
    while True:
        attempt += 1
        this = key if attempt == 1 else f"{key}/{attempt}"
        step = turn.recorded(this)
        if step is None:
            unread = [seq for seq, _ in turn.snapshot.mails if seq > turn.read]
            if not unread:
                if turn.parked is None:  # of several at once, the first is asked first
                    turn.parked = (state, turn._agent_message(question, this.replace("/", "-")), metadata)
                raise Parked(*turn.parked)
            step = Step(key=this, value=msgspec.Raw(b"null"), mail=unread[0])
            turn.read = unread[0]
            await turn.put(Record("step", step))
        mail = next(mail for seq, mail in turn.snapshot.mails if seq == step.mail)
        try:
            return answer_as(kind, mail.message)
        except Unfit as error:
            question = f"{question if isinstance(question, str) else question.text} ({error})"
