"""What must happen once for a turn: work whose result is put on record, and taken from there when the turn runs again.

It begins when the message that asks for it is on disk, because it must not happen for one that nobody remembers; and only
while this node's lease is known to be valid, because after that another node may have done it. Its key is its identity. A
re-run that has another function under the same key gets what is on record, because work that must happen once may not
happen twice for a new name; the log says so, and so does the task's record.
"""

from __future__ import annotations

from asyncio import shield
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dragoman.engine.ask import differs
from dragoman.engine.protocols import LeaseLost
from dragoman.model.values import returned

if TYPE_CHECKING:
    from dragoman.engine.turn import Turn


async def once(
    turn: Turn, key: str, work: Callable[..., Any], args: Sequence[Any], kw: Mapping[str, Any]
) -> Any:
    """What `work(*args, **kw)` came to, or comes to now."""
    if not isinstance(key, str):
        raise TypeError(f"a step's key is text, not {key!r}")
    if not callable(work):
        raise TypeError(f"turn.step({key!r}, ...) takes a function and its arguments, not what it returned")
    recorded = turn.recorded(key)
    function = _name(work)
    if recorded is not None:
        if recorded.function and recorded.function != function:
            differs(turn, "step", f"{key!r} of {recorded.function}", function)
        return returned(recorded.value, work)
    if key in turn._doing:
        raise RuntimeError(f"step {key!r} is being done: give each step of a turn its own key")
    turn._doing.add(key)
    try:
        await may_begin(turn)
        outcome = work(*args, **kw)
        value = await outcome if isinstance(outcome, Awaitable) else outcome
        await turn.record(key, value, function)
    finally:
        turn._doing.discard(key)
    return value


def _name(work: Any) -> str:
    """The name of a function, to be recognised when it runs again. Not its module: that depends on how it is loaded."""
    while isinstance(work, partial):
        work = work.func
    return str(getattr(work, "__qualname__", type(work).__qualname__))


async def may_begin(turn: Turn) -> None:
    """Wait until work may begin whose result is recorded. Raises `LeaseLost` if it may not.

    Call it right before the work: a process that is stopped in between, and goes on later, does not look again.
    """
    if turn._stored is not None:
        try:
            await shield(turn._stored)
        except Exception:
            raise LeaseLost(turn.task_id) from None
        turn._stored = None
    if turn._confirmed is not None:
        await turn._confirmed()
    if turn.journal.dead:
        raise LeaseLost(turn.task_id)
