"""The agent behind a route, as our engine and our bindings see it: its card, and who may call it for what.

The card is the agent's own, with our interfaces, authentication and signature. The bindings add the interfaces, and the server signs
the card with its own keys (`server/cards.py`). The agent's signature would not be valid for the changed card. An extension on the card
says whether it was valid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.auth.requirements import need
from dragoman.bridge.durable import follow
from dragoman.bridge.settings import BRIDGE, DURABLE, AuthSettings, RouteSettings, SkillSettings
from dragoman.bridge.upstream import CardSignature, Upstream
from dragoman.engine.records import Mail
from dragoman.engine.turn import Turn
from dragoman.errors import Forbidden, InvalidParams, Unavailable
from dragoman.model.card import AgentCard, Capabilities, Extension, Skill
from dragoman.model.ops import Call, GetExtendedCard, Principal, Request, Scope, SendMessage

_NO_SETTINGS = SkillSettings()


class BridgedAgent(Agent):
    """An `Agent` in both modes. In mode `pass`, `pass_through.PassThroughService` replaces the engine."""

    def __init__(self, name: str, settings: RouteSettings, upstream: Upstream) -> None:
        auth = (settings.auth or AuthSettings()).schemes(settings.scopes)
        super().__init__(
            name, versions=settings.versions, auth=auth, private_card=settings.private_card, id=name
        )
        self.settings, self.upstream = settings, upstream
        self.peer = f"upstream:{name}"
        self.authorize = self._check_caller
        self._rewritten: tuple[AgentCard, CardSignature, AgentCard] | None = None
        """The upstream's card, the state of its signature, and the card for callers that was made from them."""

    @property
    def card(self) -> AgentCard:
        """The card for callers. While the upstream's is not known, it has only the name."""
        upstream, signature = self.upstream.known_card or self._unknown_card, self.upstream.signature
        if self._rewritten is None or self._rewritten[0] is not upstream or self._rewritten[1] != signature:
            self._rewritten = upstream, signature, self._rewrite(upstream)
        return self._rewritten[2]

    def published_card(self) -> AgentCard:
        """`card`. Raises `Unavailable` while the upstream's is not known."""
        if self.upstream.known_card is None:
            raise Unavailable("the agent behind this address has not been reached yet", retry_after=1)
        return self.card

    @cached_property
    def _unknown_card(self) -> AgentCard:
        streams = Capabilities(streaming=self.settings.mode == DURABLE)
        return AgentCard(name=self.name, description=self.name, capabilities=streams)

    def _rewrite(self, card: AgentCard, principal: Principal | None = None) -> AgentCard:
        """The card for callers. `principal`: the card for this caller, with only the skills that it may use."""
        capabilities = card.capabilities
        others = (each for each in capabilities.extensions if each.uri != BRIDGE)
        extended = True if capabilities.extended_agent_card and self.auth else None
        capabilities = replace(
            capabilities, extensions=(*others, self._extension()), extended_agent_card=extended
        )
        if self.settings.mode == DURABLE:
            capabilities = replace(capabilities, streaming=True, push_notifications=True)
        return replace(
            card,
            supported_interfaces=(),
            signatures=(),
            capabilities=capabilities,
            skills=tuple(self._visible_skills(card, principal)),
            security_schemes=self.auth.schemes,
            security_requirements=self.auth.needing(),
        )

    def _visible_skills(self, card: AgentCard, principal: Principal | None) -> Iterator[Skill]:
        """The skills with the scopes that our callers need. The agent's own requirements are for the bridge, not for callers."""
        for skill in card.skills:
            settings = self.settings.skills.get(skill.id, _NO_SETTINGS)
            if settings.hidden or (principal is not None and not principal.scopes >= set(settings.scopes)):
                continue
            needed = self.auth.needing(settings.scopes) if settings.scopes and self.auth else ()
            same = skill.security_requirements == needed
            yield skill if same else replace(skill, security_requirements=needed)

    def _extension(self) -> Extension:
        known = self.upstream.signature
        signature: dict[str, Any] = {"state": known.state}
        if known.kid:
            signature |= {"kid": known.kid, "algorithm": known.algorithm}
        return Extension(
            uri=BRIDGE,
            description="A bridge stands between you and this agent",
            params={"mode": self.settings.mode, "signature": signature},
        )

    # -- what the engine asks ----------------------------------------------------------------------------------

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        """Check the skill that a message names. True: the answer of the upstream may be a bare Message."""
        skill_id = _find_skill_id(request.message.metadata, request.metadata)
        if skill_id is None and first is not None:
            skill_id = _find_skill_id(first.message.metadata, first.metadata)
        self.check_skill(skill_id, principal)
        return first is None

    def check_skill(self, skill_id: Any, principal: Principal) -> None:
        """Raises `Forbidden` if the caller may not use the skill. A message that names none may be for any of them."""
        skills = self.settings.skills
        if not skills:
            return
        if skill_id is None:
            needed = {scope for skill in skills.values() for scope in skill.scopes}
            need(needed, principal, "a message that names no skill")
            return
        if not isinstance(skill_id, str):
            raise InvalidParams("metadata.skillId is a text")
        settings = skills.get(skill_id)
        if settings is None:
            return
        if settings.hidden:
            raise InvalidParams(f"there is no skill {skill_id[:80]!r} here")
        need(settings.scopes, principal, f"skill {skill_id!r}")

    async def _check_caller(self, call: Call, request: Request) -> None:
        self.check_principal(call.principal)
        self.upstream.remember_caller(call)

    def check_principal(self, principal: Principal) -> None:
        """Raises `Forbidden` if a caller is not one of those that the operator lists."""
        allowed = self.settings.callers
        if allowed and principal.id not in allowed:
            raise Forbidden("you may not call this agent")

    async def extended_card(self, principal: Principal) -> AgentCard | None:
        """The upstream's extended card, with the skills that this caller may use."""
        call = Call(scope=Scope(principal.tenant, self.id, principal.id), principal=principal)
        card: AgentCard = await self.upstream.call(call, GetExtendedCard())
        return self._rewrite(card, principal)

    def work(self, turn: Turn) -> Awaitable[None]:
        return follow(turn, self.upstream, self.peer)


def _find_skill_id(*metadata: dict[str, Any]) -> Any:
    """The skill that a message names; None if it names none."""
    return next((each["skillId"] for each in metadata if each.get("skillId")), None)
