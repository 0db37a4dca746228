"""The card that a bridge shows for an agent: the agent's own, with our interfaces, authentication and signature.

The bindings add the interfaces, and the server signs the card with its own keys (`server/cards.py`). A signature of the
agent would not fit any more. What was known of it is on the card, in an extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.auth.requirements import Requirements
from dragoman.bridge.settings import DURABLE, SkillSettings
from dragoman.bridge.upstream import Verdict
from dragoman.model.card import AgentCard, Extension, Skill
from dragoman.model.ops import Principal

BRIDGE = "urn:dragoman:extension:bridge:v1"
"""The URI of the extension. See `docs/bridge.md`."""


def rewrite_card(
    card: AgentCard,
    *,
    mode: str,
    auth: Requirements,
    skills: Mapping[str, SkillSettings],
    verdict: Verdict,
    principal: Principal | None = None,
) -> AgentCard:
    """The card to show. `principal`: to this caller, with only the skills that it may use."""
    shown = tuple(
        _describe(skill, auth, skills)
        for skill in card.skills
        if not _settings(skills, skill).hidden
        and (principal is None or principal.scopes >= set(_settings(skills, skill).scopes))
    )
    capabilities = replace(
        card.capabilities,
        extensions=(
            *(each for each in card.capabilities.extensions if each.uri != BRIDGE),
            _extension(mode, verdict),
        ),
        extended_agent_card=True if card.capabilities.extended_agent_card and auth else None,
    )
    if mode == DURABLE:
        capabilities = replace(capabilities, streaming=True, push_notifications=True)
    return replace(
        card,
        supported_interfaces=(),
        signatures=(),
        capabilities=capabilities,
        skills=shown,
        security_schemes=auth.schemes,
        security_requirements=auth.needing(),
    )


def _settings(skills: Mapping[str, SkillSettings], skill: Skill) -> SkillSettings:
    return skills.get(skill.id, _NO_SETTINGS)


_NO_SETTINGS = SkillSettings()


def _describe(skill: Skill, auth: Requirements, skills: Mapping[str, SkillSettings]) -> Skill:
    """A skill with what a caller of ours needs for it. What the agent asks for is for us, not for them."""
    scopes = _settings(skills, skill).scopes
    needed = auth.needing(scopes) if scopes and auth else ()
    return skill if skill.security_requirements == needed else replace(skill, security_requirements=needed)


def _extension(mode: str, verdict: Verdict) -> Extension:
    signature: dict[str, Any] = {"state": verdict.state}
    if verdict.kid:
        signature |= {"kid": verdict.kid, "algorithm": verdict.algorithm}
    return Extension(
        uri=BRIDGE,
        description="A bridge stands between you and this agent",
        params={"mode": mode, "signature": signature},
    )
