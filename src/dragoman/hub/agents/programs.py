"""The programs that the engine runs: one for each agent of each tenant.

A program runs the agent in the version that the task started with. It counts running tasks, and stops those of a tenant that
is disabled, or whose token is revoked: before each model call, and while a model replies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, cast

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.engine.program import Program
from dragoman.engine.protocols import LeaseLost
from dragoman.engine.records import Mail
from dragoman.engine.turn import Turn, record_of
from dragoman.errors import A2AError, StoreUnavailable, TaskNotFound
from dragoman.hub.agents.constitution import ID, TOKEN_REQUIRED, TOKEN_SCHEMES
from dragoman.hub.agents.constitution_agent import AgentParts, ConstitutionAgent, check_message
from dragoman.hub.conversations.message_input import message_text
from dragoman.hub.metadata import AGENT_VERSION, VIA
from dragoman.hub.models import (
    Delta,
    Model,
    ModelError,
    ModelEvent,
    ModelTraits,
    Prompt,
    Usage,
    estimate,
)
from dragoman.hub.models.calls import may_ask
from dragoman.hub.models.names import ModelNames
from dragoman.hub.store.catalogue import CatalogueEntry
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.requests import Requests
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.hub.tenants.budgets import BUDGET_EXHAUSTED, PRICE_UNKNOWN, Budgets
from dragoman.hub.tenants.quotas import Quotas
from dragoman.model.card import AgentCard, SecurityRequirement, Skill, StringList
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Call, Principal, Request, Scope, SendMessage
from dragoman.model.task import TaskState
from dragoman.server.routes import NotFound

TENANT_STOPPED = "the tenant is disabled, or its token is revoked by now"
FAILED_CODE, AGENT_FAILED = "internal_error", "the agent broke down"
"""The error of a task that fails because of the hub, not because of the model or a command."""

logger = logging.getLogger("dragoman.hub")

_MAX_PROGRAMS = 500
_CHECK_SECONDS = 0.25
"""Seconds between two checks of the tenant while a model replies."""
_tenant: ContextVar[Tenant] = ContextVar("tenant")


class AgentPrograms:
    """`push`: the hub sends push notifications; the cards of its agents say so."""

    def __init__(
        self,
        parts: AgentParts,
        tenants: Tenants,
        quotas: Quotas,
        requests: Requests,
        conversations: Conversations,
        *,
        push: bool = False,
    ) -> None:
        self.catalogue, self.tenants, self.quotas, self.requests = parts.catalogue, tenants, quotas, requests
        self._parts, self._conversations, self._push = parts, conversations, push
        self._constitution_agents: dict[tuple[int, CatalogueEntry], Program] = {}

    def find(self, scope: Scope) -> Program | None:
        """The program for the tasks of a scope; None if there cannot be such an agent."""
        if not scope.tenant.isdigit() or not (
            ID.fullmatch(scope.agent) or scope.agent in self.catalogue.code
        ):
            return None
        return AgentProgram(self, int(scope.tenant), scope.agent)

    def card(self, found: CatalogueEntry | Agent | None, id: str) -> AgentCard:
        """The card of an agent in this hub."""
        return AgentCard(name=id) if found is None else self.with_hub_security(found.card, found)

    def with_hub_security(self, card: AgentCard, found: CatalogueEntry | Agent) -> AgentCard:
        """A card with the hub's security: a tenant's token. The `auth` of a Python agent does not apply here."""
        push = self._push and (isinstance(found, CatalogueEntry) or card.capabilities.push_notifications)
        return replace(
            card,
            capabilities=replace(card.capabilities, push_notifications=push),
            skills=tuple(_hub_skill(skill) for skill in card.skills),
            security_schemes=TOKEN_SCHEMES,
            security_requirements=TOKEN_REQUIRED,
        )

    async def store_request(self, tenant: int, turn: Turn, agent: str) -> None:
        """Store the request of a turn, and its message in the conversation.

        The hub that accepted the request does so, too, unless it was killed before, or did not get the answer of the store.
        """
        metadata = turn.first.metadata
        await self.requests.store_from(tenant, turn.task_id, agent, metadata)
        if conversation := metadata.get("x-arbiter.conversation_id", 0):
            text = message_text(turn.first.message.parts)
            with suppress(NotFound):  # the conversation is gone
                await self._conversations.restore_question(tenant, conversation, turn.task_id, text)

    def program_of(self, tenant: Tenant, entry: CatalogueEntry) -> Program:
        """The program that runs a version of a constitution."""
        key = tenant.id, entry
        program = self._constitution_agents.get(key)
        if program is None:
            if len(self._constitution_agents) >= _MAX_PROGRAMS:
                self._constitution_agents.clear()
            program = self._constitution_agents[key] = ConstitutionAgent(tenant.key, entry, self._parts)
        return program


class AgentProgram:
    """A `Program`: an agent of a tenant, in the version that each task started with."""

    def __init__(self, programs: AgentPrograms, tenant: int, agent: str) -> None:
        self._programs, self._tenant, self.agent = programs, tenant, agent
        self._found: CatalogueEntry | Agent | None = programs.catalogue.code.get(agent)
        """The agent as it is now; `authorize` reads it."""

    @property
    def card(self) -> AgentCard:
        return self._programs.card(self._found, self.agent)

    async def exists(self) -> bool:
        return await self._programs.catalogue.existed(self._tenant, self.agent)

    async def authorize(self, call: Call, request: Request) -> None:
        """Raises `TaskNotFound` if there never was such an agent, and what an agent that is code raises."""
        catalogue = self._programs.catalogue
        self._found = await catalogue.find(self._tenant, self.agent)
        if self._found is None and not await catalogue.existed(self._tenant, self.agent):
            raise TaskNotFound("", message="there is no such agent")
        if isinstance(self._found, Agent) and self._found.authorize is not None:
            await self._found.authorize(call, request)

    async def extended_card(self, principal: Principal) -> AgentCard | None:
        code = self._programs.catalogue.code.get(self.agent)
        card = None if code is None else await code.extended_card(principal)
        return None if card is None or code is None else self._programs.with_hub_security(card, code)

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        if isinstance(self._found, Agent):
            return self._found.check_message(request, principal, first)
        version = (request.metadata if first is None else first.metadata).get(AGENT_VERSION)
        if self._found is None and not isinstance(version, int):
            raise TaskNotFound("", message=f"there is no agent {self.agent!r}")
        return check_message(request, first)  # every version of a constitution takes the same messages

    async def work(self, turn: Turn) -> None:
        programs = self._programs
        # the latest message: the holder of another token may continue an old task
        _, latest = record_of(turn).journal.snapshot.mails[-1]
        try:
            tenant = await programs.tenants.find_active(self._tenant, latest.generation)
        except StoreUnavailable:
            programs.quotas.keep_slot(turn.scope.tenant, self.agent, turn.task_id)
            raise
        if tenant is None:
            await turn.cancel_children()
            turn.finish(TaskState.FAILED, TENANT_STOPPED, _failure_metadata(self.agent))
            return
        from_outside = VIA in turn.first.metadata
        with programs.quotas.running(tenant, self.agent, turn.task_id, asked=from_outside):
            if from_outside:
                await programs.store_request(tenant.id, turn, self.agent)
            program = await self._program(tenant, turn)
            if program is None:
                turn.finish(TaskState.FAILED, "the agent is gone", _failure_metadata(self.agent, "not_found"))
                return
            with on_behalf_of(tenant):
                if isinstance(program, Agent):
                    # Again: from here on the task is known to run, and is canceled when its tenant is disabled.
                    if await programs.tenants.find_active(self._tenant, latest.generation) is None:
                        turn.finish(TaskState.FAILED, TENANT_STOPPED, _failure_metadata(self.agent))
                        return
                    await program.work(turn)
                else:
                    await self._run_constitution(program, turn)

    async def _run_constitution(self, program: Program, turn: Turn) -> None:
        """Run a constitution. If the hub fails, the task fails without details."""
        try:
            await program.work(turn)
        except (A2AError, LeaseLost):
            raise
        except Exception:
            logger.exception("task %s: agent %s broke down", turn.task_id, self.agent)
            message = Message(
                message_id=f"{turn.task_id}-err", role=Role.AGENT, parts=(Part(text=AGENT_FAILED),)
            )
            turn.finish(TaskState.FAILED, message, _failure_metadata(self.agent, FAILED_CODE, AGENT_FAILED))

    async def _program(self, tenant: Tenant, turn: Turn) -> Program | None:
        """The agent in the version that the task started with."""
        catalogue = self._programs.catalogue
        if (code := catalogue.code.get(self.agent)) is not None:
            return code
        version: Any = turn.first.metadata.get(AGENT_VERSION)
        if not isinstance(version, int):
            found = await catalogue.find(self._tenant, self.agent)
            current = found.version if isinstance(found, CatalogueEntry) else -1
            version = await turn.step("constitution", lambda: current)
        entry = await catalogue.version(self._tenant, self.agent, version)
        return None if entry is None else self._programs.program_of(tenant, entry)


@contextmanager
def on_behalf_of(tenant: Tenant) -> Iterator[None]:
    """Inside this block, models stop when the tenant is disabled or its token is revoked."""
    token = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(token)


class StoppableModel:
    """The `Model` of all tenants. It stops when its tenant is disabled or its token is revoked.

    It calls only models that the tenant may name, and none when a budget of the tenant is used up. Each call counts against the
    budgets when it ends, also one that was interrupted.
    """

    def __init__(
        self, model: Model, tenants: Tenants, *, names: ModelNames, policies: Policies, budgets: Budgets
    ) -> None:
        self._model, self._tenants = model, tenants
        self._names, self._policies, self._budgets = names, policies, budgets

    async def respond(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        await self._check()
        if (tenant := _tenant.get(None)) is not None:
            await self._check_policy(tenant.id, prompt.model)
        prompt = replace(prompt, model=self._names.resolve(prompt.model))
        await may_ask()
        checked_at, characters, usage = time.monotonic(), 0, Usage()
        try:
            async with aclosing(cast(Any, self._model.respond(prompt))) as events:
                async for event in events:
                    if isinstance(event, Delta):
                        characters += len(event.text)
                    elif isinstance(event, Usage):
                        usage = event
                    if (now := time.monotonic()) - checked_at > _CHECK_SECONDS:
                        checked_at = now
                        await self._check()
                    yield event
        finally:
            if not usage.total and characters:
                usage = estimate(prompt, characters)
            if tenant is not None:
                await self._budgets.spend(tenant.id, self._model.traits(prompt.model).name, usage)

    def traits(self, name: str) -> ModelTraits:
        return self._model.traits(self._names.resolve(name))

    async def _check_policy(self, tenant: int, name: str) -> None:
        """Raises `ModelError` for a model that the tenant may not name, and when a budget is used up."""
        if why := self._names.refusal(await self._policies.of(tenant), name):
            raise ModelError("model_not_allowed", f"the model of this agent {why}")
        budget, why = await self._budgets.refusal(tenant)
        if budget:
            raise ModelError(BUDGET_EXHAUSTED, why)
        model = self.traits(name).name
        if await self._budgets.lacks_price(tenant, model):
            raise ModelError(
                PRICE_UNKNOWN,
                f"the price of {model[:80]!r} is not in the settings of the hub, which limits money",
            )

    async def _check(self) -> None:
        tenant = _tenant.get(None)
        if tenant is not None and await self._tenants.find_active(tenant.id, tenant.generation) is None:
            raise ModelError("unauthorized", TENANT_STOPPED)


def _hub_skill(skill: Skill) -> Skill:
    """Security requirements of a skill become scopes of the tenant's token."""
    if not skill.security_requirements:
        return skill
    required = [scopes.list for each in skill.security_requirements for scopes in each.schemes.values()]
    scopes = tuple(dict.fromkeys(scope for scopes in required for scope in scopes))
    return replace(
        skill, security_requirements=(SecurityRequirement(schemes={"bearer": StringList(list=scopes)}),)
    )


def _failure_metadata(agent: str, code: str = "unauthorized", why: str = TENANT_STOPPED) -> dict[str, Any]:
    return {"x-arbiter.agent_id": agent, "x-arbiter.error": why, "x-arbiter.error_type": code}
