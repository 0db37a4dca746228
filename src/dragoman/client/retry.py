"""When to try again, and how long to wait before.

A request may be repeated when the peer cannot have acted on it (it never arrived, or was turned away), when acting on
it twice changes nothing, or when the peer knows a repeated `Idempotency-Key` for what it is. Everything else is
reported, because running somebody's work twice is worse than an error.
"""

from __future__ import annotations

import asyncio
import random
import time

from msgspec import Struct

from dragoman.client.transport.transport import NotSent, Rejected
from dragoman.errors import A2AError, RateLimited, Unavailable, Unreachable
from dragoman.model.ops import CreatePushConfig, Request, SendMessage


class Policy(Struct, frozen=True, kw_only=True):
    """How stubborn a client is."""

    attempts: int = 4
    """How often a call is tried in all."""
    patience: float = 60.0
    """How long a task we know of is asked for, in seconds without any news, before we give up on its agent; and how long a
    peer may tell us to stay away, unless there is a timeout."""
    shortest: float = 0.2
    longest: float = 5.0
    silence: float = 60.0
    """After so many seconds without even a keep-alive, a stream is taken for dead and opened anew."""


def transient(error: A2AError) -> bool:
    """It may go away by itself."""
    return isinstance(error, Unreachable | Unavailable | RateLimited) and not isinstance(error, Rejected)


def repeatable(error: A2AError, request: Request, *, deduplicates: bool) -> bool:
    """Whether sending `request` again after `error` is safe."""
    if not transient(error):
        return False
    turned_away = isinstance(error, RateLimited) or (
        isinstance(error, Unavailable) and error.retry_after is not None
    )
    if isinstance(error, NotSent) or turned_away or deduplicates:
        return True
    if isinstance(request, CreatePushConfig):
        return bool(request.config.id)
    return not isinstance(request, SendMessage)


def wait_for(policy: Policy, attempt: int, error: A2AError) -> float:
    """Seconds before the next attempt: what the peer asked for, or a random part of a growing interval."""
    interval = min(policy.longest, policy.shortest * 2 ** min(attempt - 1, 16))
    jittered: float = interval * random.uniform(0.5, 1.0)
    return jittered if error.retry_after is None else max(error.retry_after, jittered / 4)


async def pause(policy: Policy, attempt: int, error: A2AError, deadline: float | None) -> None:
    """Wait before trying again; raise `error` now if there is no time for it."""
    seconds = wait_for(policy, attempt, error)
    if deadline is not None:
        too_long = time.time() + seconds >= deadline
    else:
        too_long = error.retry_after is not None and seconds > policy.patience
    if too_long:
        raise error
    await asyncio.sleep(seconds)
