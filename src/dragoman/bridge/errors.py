"""What callers of a bridge are told of an error of the agent behind it.

They are not told where the agent is, nor that it refused credentials of ours. Its own errors about a request are theirs,
and are passed on.
"""

from __future__ import annotations

import logging

from dragoman.bridge.upstream import NotCalled, Upstream
from dragoman.client.transport.transport import NotSent
from dragoman.errors import (
    A2AError,
    Forbidden,
    InvalidAgentResponse,
    Unauthenticated,
    Unavailable,
    Unreachable,
)

logger = logging.getLogger("dragoman.bridge")

MAX_MESSAGE_CHARS = 2000
"""Of the text of an error that is passed on."""


def for_callers(error: A2AError, upstream: Upstream) -> A2AError:
    """The error for a caller of ours."""
    if isinstance(error, NotCalled):
        return Unavailable(error.message, retry_after=error.retry_after)
    if isinstance(error, NotSent):
        logger.warning("%s cannot be reached: %s", upstream.name, error.message)
        return Unavailable("the agent behind this address cannot be reached", retry_after=1)
    if isinstance(error, Unreachable):
        logger.warning("%s did not answer: %s", upstream.name, error.message)
        return Unreachable("the agent behind this address did not answer: it may have got the request")
    if isinstance(error, InvalidAgentResponse):
        logger.warning("%s sent what cannot be read: %s", upstream.name, error.message)
        return InvalidAgentResponse("the agent behind this address sent an answer that cannot be read")
    if isinstance(error, Unauthenticated | Forbidden) and not upstream.shows_callers:
        logger.error("%s refuses the credentials of its route: %s", upstream.name, error.message)
        return Unavailable("the agent behind this address refuses this server")
    error.message = error.message[:MAX_MESSAGE_CHARS]
    return error
