"""A question of a turn: answered by mail that came since, or parked until it comes.

Nothing waits for an answer. The function is unwound, and runs again when there is mail; a `step` of the log says which
message was the answer to which question, so that one that was answered is not asked again.

A question is known by its key, else by its text. The first message after it is its answer and goes to no other question,
also when the function that runs again asks others, or in another order: what has no answer is asked.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.engine.records import Differs, Question, Record, Step
from dragoman.model.answers import hint
from dragoman.model.content import Message, Part, text_of
from dragoman.model.task import TaskState
from dragoman.model.values import Unfit, answer_as, parts_of

if TYPE_CHECKING:
    from dragoman.engine.turn import Turn

logger = logging.getLogger("dragoman.turn")

RECORDED_CHARACTERS = 200
"""How much of a question's text is kept for the log."""
_NOTHING = msgspec.Raw(b"null")


class Parked(BaseException):
    """Unwinds the function; the turn goes on when the answer comes. Not an `Exception`: agent code must let it pass."""

    def __init__(self, state: TaskState, message: Message, metadata: dict[str, Any]) -> None:
        super().__init__(state.word)
        self.state, self.message, self.metadata = state, message, metadata


def digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def counted(key: str, used: dict[str, int]) -> str:
    """`key`, and from the second time on its number."""
    used[key] = n = used.get(key, 0) + 1
    return key if n == 1 else f"{key}#{n}"


def key_of_question(question: str | Message, key: str, used: dict[str, int]) -> str:
    """What a question is recorded under: its key, else its text, counted in `used` if it is asked more than once."""
    if not isinstance(key, str):
        raise TypeError(f"a question's key is text, not {key!r}")
    return f"ask/{key}" if key else counted(f"ask/{digest(_text(question).encode())}", used)


def take_answer(turn: Turn) -> None:
    """Record the first message after the question that peers saw last as its answer, whatever this run will ask."""
    if turn.snapshot.asked is None:
        return
    seq, turn.unasked = turn.snapshot.asked
    if turn.recorded(turn.unasked.key) is not None:
        return
    if (mail := next((n for n, _ in turn.snapshot.mails if n > max(seq, turn.read)), None)) is not None:
        _take(turn, turn.unasked.key, mail)


async def answer(
    turn: Turn, state: TaskState, question: str | Message, kind: Any, key: str, metadata: dict[str, Any]
) -> Any:
    """The answer to `question`, as a `kind`. One that does not fit is asked for again. Raises `Parked`."""
    attempt, asked = 0, question
    while True:
        attempt += 1
        this = key if attempt == 1 else f"{key}/{attempt}"
        if turn.unasked is not None and turn.unasked.key == this:
            turn.unasked = None
        step = turn.recorded(this)
        if step is None:
            unread = [seq for seq, _ in turn.snapshot.mails if seq > turn.read]
            if unread and turn.unasked is not None:  # they were sent to somebody who saw another question
                for seq in unread:
                    _take(turn, f"mail/{seq}", seq)
                unread = []
            if not unread:
                if turn.parked is None:  # of several at once, the first is asked first
                    turn.question = Question(key=this, text=_text(question)[:RECORDED_CHARACTERS])
                    turn.parked = (state, turn._agent_message(asked, this.replace("/", "-")), metadata)
                raise Parked(*turn.parked)
            step = _take(turn, this, unread[0])
            await turn.journal.commit()
        mail = next(mail for seq, mail in turn.snapshot.mails if seq == step.mail)
        try:
            return answer_as(kind, mail.message)
        except Unfit as error:
            asked = _with_hint(question, hint(kind, str(error)))


def differs(turn: Turn, what: str, recorded: str, now: str = "") -> None:
    """Report that a re-run does something else than is on record: in the log, and in the task's record."""
    turn.journal.put(Record("differs", Differs(what=what, recorded=recorded, now=now)))
    logger.warning(_DIFFERS[what], turn.task_id, recorded, now or "nothing")


_DIFFERS = {
    "question": "task %s: the answer was to %r, and the function that runs again asks %r: the answer is kept for its own"
    " question. Give turn.ask a key= if only the text has changed",
    "step": "task %s: the recorded result of step %s is used for %s. Give other work another key",
    "call": "task %s: the function that runs again did not make the call of %s again, but %s. Give turn.call a key= if"
    " only its content has changed",
}


def _take(turn: Turn, key: str, mail: int) -> Step:
    step = Step(key=key, value=_NOTHING, mail=mail)
    turn._replay.steps[key] = step
    turn.read = max(turn.read, mail)
    turn.journal.put(Record("step", step))
    return step


def _text(question: Any) -> str:
    """What makes a question this one and no other."""
    text = question if isinstance(question, str) else text_of(_parts(question))
    if not text:
        return msgspec.json.encode(_parts(question)).decode()
    return text.encode("utf-8", "replace").decode()  # what cannot be written is refused where it is said


def _parts(question: Any) -> tuple[Part, ...]:
    return question.parts if isinstance(question, Message) else parts_of(question)


def _with_hint(question: Any, sentence: str) -> Any:
    """The question once more, with one sentence about what fits."""
    if isinstance(question, str):
        return f"{question} ({sentence})"
    parts = (*_parts(question), Part(text=f" ({sentence})"))
    return msgspec.structs.replace(question, parts=parts) if isinstance(question, Message) else parts
