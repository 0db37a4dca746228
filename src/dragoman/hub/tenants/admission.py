"""The way into a hub: whether a tenant may, how much and how often; which version of an agent a new task is for; its id.

What somebody else says about a message in the hub's own words (`x-arbiter.`, `x-dragoman.`) is not believed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.errors import (
    A2AError,
    ContentTypeNotSupported,
    InvalidParams,
    RateLimited,
    TaskNotFound,
    Unauthenticated,
)
from dragoman.hub.agents.catalogue import Catalogue, Entry
from dragoman.hub.agents.constitution_agent import NATIVE, VIA
from dragoman.hub.agents.programs import OURS, VERSION
from dragoman.hub.metrics import Metrics
from dragoman.hub.tenants.quotas import Quotas
from dragoman.hub.tenants.tenants import Tenant, Tenants
from dragoman.model.content import NOTHING, Message
from dragoman.model.ops import Call, SendMessage


class Admission:
    def __init__(self, tenants: Tenants, catalogue: Catalogue, quotas: Quotas, metrics: Metrics) -> None:
        self._tenants, self._catalogue, self._quotas, self._metrics = tenants, catalogue, quotas, metrics

    @contextmanager
    def anything(self, tenant: Tenant, route: str) -> Iterator[None]:
        """Around something that is no task, and counts as one. Raises `RateLimited`."""
        id = secrets.token_hex(8)
        try:
            self._quotas.spend(tenant)
            self._quotas.reserve(tenant, "", id)
        except RateLimited as error:
            self._metrics.limited(tenant, error.metadata["reason"])
            raise
        with self._metrics.request(tenant, route):
            try:
                yield
            finally:
                self._quotas.forgo(tenant.key, "", id)

    @contextmanager
    def message(
        self, call: Call, request: SendMessage, *, via: str, conversation: int = 0, inline: bool = False
    ) -> Iterator[tuple[Call, SendMessage]]:
        """A message as it goes on to the engine, with room for its task. Raises what it is refused with.

        `inline`: its agent comes with it, and need not be there.
        """
        number = int(call.scope.tenant) if call.scope.tenant.isdigit() else 0
        tenant, agent = self._tenants.look(number), call.scope.agent
        shown = call.principal.generation
        if tenant is None or tenant.disabled or shown not in (None, tenant.generation):
            raise Unauthenticated("missing or invalid bearer token")
        found = self._catalogue.find(tenant.id, agent)
        message, native = request.message, via == NATIVE
        if not isinstance(found, Agent) and not native:
            _check_text(message)
        if found is None and not inline:
            raise TaskNotFound("", message=f"there is no agent {agent[:80]!r}")
        metadata = {VIA: via, **(request.metadata if native else _foreign(request.metadata))}
        if not inline and isinstance(found, Entry):
            metadata[VERSION] = found.version
        key = call.idempotency_key or ("" if native else _key(message))
        message = replace(message, metadata=_foreign(message.metadata))
        try:
            self._quotas.spend(tenant)
            if not message.task_id or call.names_tasks:
                message = _named(message)
                call = replace(call, names_tasks=True)
            if (agent, message.task_id) not in self._quotas.of(tenant.key):
                self._quotas.reserve(tenant, agent, message.task_id, conversation=conversation, via=via)
        except RateLimited as error:
            self._metrics.limited(tenant, error.metadata["reason"])
            raise
        self._metrics.started(tenant.key, via)
        try:
            yield (
                replace(call, idempotency_key=key),
                replace(request, message=message, metadata=metadata),
            )
        except A2AError:
            self._metrics.ended(tenant.key, via, False)  # of one that was taken, the engine says how it ended
            raise
        finally:
            self._quotas.forgo(tenant.key, agent, message.task_id)


def _named(message: Message) -> Message:
    """With the ids that are still missing: 16 hexadecimal digits."""
    return replace(
        message,
        task_id=message.task_id or secrets.token_hex(8),
        context_id=message.context_id or ("" if message.task_id else secrets.token_hex(8)),
    )


def _check_text(message: Message) -> None:
    """Constitutions take text and nothing else; this comes before anything else is said about a message."""
    if any(part.text is None for part in message.parts):
        raise ContentTypeNotSupported("this agent takes text only: text/plain")
    if not any(part.text and part.text.strip() for part in message.parts):
        raise InvalidParams("the message says nothing", fields=(("message.parts", "hold no text"),))


def _foreign(metadata: dict[str, Any]) -> dict[str, Any]:
    """What somebody else may say."""
    return {name: value for name, value in metadata.items() if not name.startswith(OURS)} or NOTHING


def _key(message: Message) -> str:
    """A message that is sent twice is done once. Ids are not always as unique as they should be: the words count, too."""
    if not message.message_id or message.task_id:
        return ""
    words = hashlib.sha256(msgspec.json.encode(message)).hexdigest()
    return f"message/{words}"
