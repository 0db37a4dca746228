"""An agent: a card, and functions that do what it says."""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from msgspec import Struct
from msgspec.structs import replace

from dragoman.agent.parameters import JSON, TEXT, arguments_of
from dragoman.agent.skill import SkillFunction, SkillOptions, declare, words
from dragoman.auth.requirements import Requirements, need
from dragoman.engine.records import Mail
from dragoman.engine.tools import ToolBox, ToolServer
from dragoman.engine.turn import Turn, attach_tools
from dragoman.errors import ContentTypeNotSupported, Forbidden, InvalidParams
from dragoman.model.card import AgentCard, Capabilities, Extension, Provider, Skill
from dragoman.model.content import Message, Part
from dragoman.model.ops import Call, Principal, Request, SendMessage, Service
from dragoman.model.options import check_options
from dragoman.model.schema import SKILL_SCHEMAS, extension_of
from dragoman.model.task import Event

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from dragoman.client import Client
    from dragoman.server.app import App
    from dragoman.server.options import AppOptions, ServeOptions, TestOptions

F = TypeVar("F", bound=Callable[..., Any])

VERSIONS = ("1.0", "0.3", "0.2", "0.1")
"""The versions that an agent supports by default: all. (0.1 includes the draft.)"""
_SKILL = "message.metadata.skillId"
"""Where a message says which of several skills it is for."""


class MethodCall(Struct, frozen=True):
    """A call of an extension's own method."""

    params: dict[str, Any]
    call: Call
    """Who is calling: `call.principal`."""
    service: Service
    """The agent's own operations, as this caller may use them: `await service.call(call, GetTask(id=...))`."""


Method = Callable[[MethodCall], Awaitable[Any]]


class AgentExtension:
    """What an agent does for an extension. Set `uri`, and override what it needs.

    The hooks are called only if the extension is active: if the sender asked for it (`A2A-Extensions`), or `always` is set.
    What was asked for is stored with the message, so a turn that runs again after a crash sees the same.
    """

    uri: str = ""
    """With a version in it: an incompatible change needs another URI."""
    description: str = ""
    required: bool = False
    """Messages of clients that do not ask for it are refused."""
    always: bool = False
    """Active for every message."""

    def params(self, agent: Agent) -> dict[str, Any]:
        """The `params` on the card."""
        return {}

    async def on_request(self, call: Call, request: Request) -> Request:
        """Before an operation. Returns the request, or another one; raises the `A2AError` to answer with."""
        return request

    def on_event(self, turn: Turn, event: Event) -> Event:
        """Before something that a turn says is recorded and sent: a status, a chunk of an artifact, a bare Message.

        What it adds to `event.status.message.metadata` or `event.artifact.metadata` does not count when a turn that
        runs again is compared with the record.
        """
        return event

    async def on_response(self, call: Call, request: Request, response: Any) -> Any:
        """After an operation that does not stream. Returns the response, or another one."""
        return response

    @property
    def methods(self) -> Mapping[str, Method]:
        """Methods of its own, by name: `{"usage/get": self.get}`. Callable over JSON-RPC, HTTP+JSON and gRPC."""
        return {}

    def on_card(self, agent: Agent) -> Extension:
        """Its entry on the card."""
        return Extension(
            uri=self.uri, description=self.description, required=self.required, params=self.params(agent)
        )


class Agent:
    """`Agent("Hello", description="Says hello")`, then `@agent.skill` on a function, then `agent.run()`.

    `versions` limits the supported versions: `Agent(..., versions=("1.0",))` serves a pure 1.0 card. `push=False`: it tells no
    webhooks. (How they are told is for all agents of a server: `agent.run(push=PushOptions(...))`.)

    `auth` says who may call it (see `dragoman.auth`): one scheme, or several of which any one will do. The card follows.
    `authorize(principal, request)`, plain or async, decides about each operation: False refuses it, as does an error it
    raises. `extended_card` is for callers who have said who they are: more skills, or a function of the principal that
    returns skills or a whole card. `private_card` keeps the card itself for them.

    `earlier` are agents with earlier versions of the code. They finish the turns that they began (`docs/changing-agents.md`).
    `tools` are servers whose tools a turn may call: `tools=[mcp("npx some-server")]` (`docs/mcp.md`).
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        *,
        id: str = "",
        version: str = "1.0.0",
        provider: Provider | None = None,
        documentation_url: str = "",
        icon_url: str = "",
        streaming: bool = True,
        push: bool = True,
        extensions: Sequence[Extension | AgentExtension] = (),
        input_modes: Sequence[str] = (),
        output_modes: Sequence[str] = (),
        versions: Sequence[str] = VERSIONS,
        auth: Any = (),
        authorize: Callable[[Principal, Any], Any] | None = None,
        extended_card: Callable[[Principal], Any] | Sequence[Skill] | None = None,
        private_card: bool = False,
        earlier: Sequence[Agent] = (),
        tools: Sequence[ToolServer] = (),
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"an agent needs a name, not {name!r}")
        if not isinstance(push, bool):
            raise TypeError(
                f"push is True or False here; how webhooks are told goes to run() or serve(): {push!r}"
            )
        self.name = name
        self.version = version
        """The version of the agent's code. A turn keeps the one that began it (`turn.version`)."""
        self.id = id or _id(name)
        if not re.fullmatch(r"[A-Za-z0-9._~-]+", self.id):
            raise ValueError(f"an id is part of a URL: letters, digits and . _ ~ -, not {id!r}")
        versions = words(versions)
        if not versions or any(each not in VERSIONS for each in versions):
            raise ValueError(f"versions are some of {', '.join(VERSIONS)}, not {versions!r}")
        self.versions = tuple(each for each in VERSIONS if each in versions)
        self.auth = Requirements(auth)
        if private_card and not self.auth:
            raise ValueError("a private card is for callers who say who they are: give auth=")
        if extended_card is not None and not self.auth:
            raise ValueError("an extended card is for callers who say who they are: give auth=")
        self.private_card = private_card
        self._decide, self._extended = authorize, extended_card
        self.authorize: Callable[[Call, Request], Awaitable[None]] | None = (
            self._authorize if authorize is not None else None
        )
        self._input_modes, self._output_modes = words(input_modes), words(output_modes)
        self._skills: dict[str, SkillFunction] = {}
        self._about = AgentCard(
            name=name,
            description=description or name,
            version=version,
            provider=provider,
            documentation_url=documentation_url,
            icon_url=icon_url,
            capabilities=Capabilities(
                streaming=streaming,
                push_notifications=push,
                extensions=tuple(each for each in extensions if isinstance(each, Extension)),
                extended_agent_card=True if extended_card is not None else None,
            ),
        )
        self.extensions = tuple(each for each in extensions if isinstance(each, AgentExtension))
        """Those that are objects, with hooks and methods."""
        if any(not each.uri for each in self.extensions):
            raise ValueError("an extension needs a uri")
        self.event_hook = self._event_hook if self.extensions else None
        self.tools = ToolBox(tools) if tools else None
        self._earlier = {agent.version: agent for agent in earlier}
        if version in self._earlier or len(self._earlier) != len(earlier):
            raise ValueError("each of the earlier agents needs a version of its own: Agent(version=...)")

    @property
    def versions_of_code(self) -> tuple[Agent, ...]:
        """This agent, and those with earlier versions of its code."""
        return (self, *self._earlier.values())

    @cached_property
    def card(self) -> AgentCard:
        """The card without interfaces: where the agent is reached is the server's to say."""
        skills = self._skills.values()
        return replace(
            self._about,
            capabilities=self._capabilities(),
            default_input_modes=self._input_modes or _union((TEXT,), [s.skill.input_modes for s in skills]),
            default_output_modes=self._output_modes
            or _union((TEXT,), [s.skill.output_modes for s in skills]),
            skills=tuple(map(self._describe, skills)),
            security_schemes=self.auth.schemes,
            security_requirements=self.auth.needing(),
        )

    def _capabilities(self) -> Capabilities:
        """What the card says the agent can do: with the schemas of skills that take or return data."""
        about = self._about.capabilities
        if self.extensions:
            objects = tuple(each.on_card(self) for each in self.extensions)
            about = replace(about, extensions=(*about.extensions, *objects))
        schemas = {
            id: each.schema for id, each in self._skills.items() if each.schema.input or each.schema.output
        }
        if not schemas or any(each.uri == SKILL_SCHEMAS for each in about.extensions):
            return about
        return replace(about, extensions=(*about.extensions, extension_of(schemas)))

    def _describe(self, skill: SkillFunction) -> Skill:
        """A skill as the card has it: with what it needs beyond what the agent needs."""
        if not skill.scopes or not self.auth:
            return skill.skill
        return replace(skill.skill, security_requirements=self.auth.needing(skill.scopes))

    # -- authoring ---------------------------------------------------------------------------------------------

    @overload
    def skill(self, function: F, /) -> F: ...
    @overload
    def skill(self, **options: Unpack[SkillOptions]) -> Callable[[F], F]: ...

    def skill(  # type: ignore[misc]
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[SkillOptions]
    ) -> Any:
        """Make a function a skill; bare or called. The function stays as it is, so it can be tested as it is.

        `reply=True`: the answer is a bare Message, no task. `default=True`: takes messages that name no skill.
        """

        def declared(function: Callable[..., Any]) -> Callable[..., Any]:
            check_options(options, SkillOptions, "a skill")
            add_skill(self, declare(function, **options))
            return function

        return declared if function is None else declared(function)

    # -- what the engine asks ----------------------------------------------------------------------------------

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        wanted = _find_skill_name(request.message, request.metadata)
        if first is not None and wanted is None:
            # It goes on with its task, whose skill was chosen when it began. Who may not begin may not go on.
            skill = self._choose(_find_skill_name(first.message, first.metadata), begun=True)
            need(skill.scopes, principal, f"skill {skill.skill.id!r}")
            # An answer may be data.
            _check_input((*self.card.default_input_modes, JSON), request.message.parts)
            return False
        skill = self._choose(wanted)
        if skill.scopes:
            need(skill.scopes, principal, f"skill {skill.skill.id!r}")
        message, accepted = request.message, request.configuration.accepted_output_modes
        _check_input(skill.skill.input_modes or self.card.default_input_modes, message.parts)
        if accepted:
            _check_output(skill.skill.output_modes or self.card.default_output_modes, accepted)
        if (skill.particular or message.parts[0].text is None) and not message.task_id:
            arguments_of(skill.parameters, message, None)
        if skill.check is not None and not message.task_id:
            skill.check(message)
        return skill.reply

    async def _authorize(self, call: Call, request: Request) -> None:
        assert self._decide is not None
        decided = self._decide(call.principal, request)
        if inspect.isawaitable(decided):
            decided = await decided
        if decided is False:
            raise Forbidden("you may not do this here")

    async def exists(self) -> bool:
        return True

    async def extended_card(self, principal: Principal) -> AgentCard | None:
        extended: Any = self._extended
        if callable(extended):
            extended = extended(principal)
            if inspect.isawaitable(extended):
                extended = await extended
            if extended is None:
                raise Forbidden("there is no extended card for you")
        if extended is None or isinstance(extended, AgentCard):
            return extended
        return replace(self.card, skills=(*self.card.skills, *extended))

    def _event_hook(self, turn: Turn) -> Callable[[Event], Event] | None:
        """What the extensions that the message asked for make of the turn's events; None if nothing."""
        asked = turn.mail.extensions
        active = [
            each
            for each in self.extensions
            if (each.always or each.uri in asked) and type(each).on_event is not AgentExtension.on_event
        ]
        if not active:
            return None

        def change(event: Event) -> Event:
            for each in active:
                event = each.on_event(turn, event)
            return event

        return change

    def work(self, turn: Turn) -> Awaitable[None]:
        if turn.version != self.version and (earlier := self._earlier.get(turn.version)) is not None:
            return earlier.work(turn)
        if self.tools is not None:
            attach_tools(turn, self.tools)
        mail, first = turn.mail, turn.first
        wanted = _find_skill_name(mail.message, mail.metadata)
        if wanted is None and first is not mail:
            wanted = _find_skill_name(first.message, first.metadata)
        return self._choose(wanted, begun=first is not mail).run(turn)

    def _choose(self, wanted: Any, *, begun: bool = False) -> SkillFunction:
        """The skill for a message. `begun`: the task exists, so its skill may be one of an earlier version."""
        if wanted is not None:
            if begun and isinstance(wanted, str) and wanted not in self._skills:
                for earlier in self._earlier.values():
                    if wanted in earlier._skills:
                        return earlier._skills[wanted]
            if not isinstance(wanted, str) or wanted not in self._skills:
                raise InvalidParams(
                    f"there is no skill {str(wanted)[:80]!r} here: {self._names()}",
                    fields=((_SKILL, "names no skill of this agent"),),
                )
            return self._skills[wanted]
        if len(self._skills) == 1:
            (only,) = self._skills.values()
            return only
        for skill in self._skills.values():
            if skill.default:
                return skill
        if not self._skills:
            raise InvalidParams(f"agent {self.name!r} has no skills")
        raise InvalidParams(
            f"say which skill you mean in metadata.skillId: {self._names()}",
            fields=((_SKILL, "must name a skill"),),
        )

    def _names(self) -> str:
        return "it has " + ", ".join(repr(name) for name in self._skills)

    # -- running -----------------------------------------------------------------------------------------------

    def app(self, **options: Unpack[AppOptions]) -> App:
        """The agent as an ASGI app, to be mounted anywhere. Options as for `dragoman.application`.

        Nothing is opened before its first request, or the start of its lifespan. In a process that runs tests (pytest,
        `python -m unittest`) tasks are kept in memory, unless `store=` or `DRAGOMAN_STORE` says otherwise.
        """
        from dragoman.server.application import application

        return application(self, **options)

    def run(self, **options: Unpack[ServeOptions]) -> None:
        """Serve on loopback until interrupted. Options as for `dragoman.serve`."""
        from dragoman.server.runtime import serve

        serve(self, **options)

    def test(self, **options: Unpack[TestOptions]) -> AbstractAsyncContextManager[Client]:
        """`async with agent.test() as client:` talks to the agent in process, streaming included, with no network.

        `version` and `credentials` are what the client speaks and shows; other options as for `app`.
        """
        from dragoman.agent.testing import in_process

        return in_process(self, **options)


def add_skill(agent: Agent, skill: SkillFunction) -> None:
    """Add a skill that was not read from a signature: for the packages of Dragoman itself."""
    skills = agent._skills
    if skill.skill.id in skills:
        raise TypeError(f"agent {agent.name!r} has a skill {skill.skill.id!r} already")
    if skill.default and (other := next((s for s in skills.values() if s.default), None)):
        raise TypeError(f"agent {agent.name!r} has a default skill already: {other.skill.id!r}")
    skills[skill.skill.id] = skill
    agent.__dict__.pop("card", None)  # it is made again, with this skill


def _id(name: str) -> str:
    """A name as it can stand in a URL."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", letters.lower()).strip("-") or "agent"


def _find_skill_name(message: Message, metadata: dict[str, Any]) -> Any:
    """The skill that a message names; None if it names none."""
    return message.metadata.get("skillId") or metadata.get("skillId")


def _union(first: tuple[str, ...], rest: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *(mode for modes in rest for mode in modes)]))


def _mode(mode: str) -> str:
    """`text` and `text/plain; charset=utf-8` are what the oldest and the newest call `text/plain`."""
    mode = mode.partition(";")[0].strip().lower()
    return TEXT if mode == "text" else JSON if mode == "data" else mode


def _fits(mode: str, modes: Sequence[str]) -> bool:
    if mode in modes:
        return True
    mode = _mode(mode)
    major = mode.partition("/")[0]
    for other in map(_mode, modes):
        if other in (mode, "*/*", "*", f"{major}/*") or mode in ("*/*", "*"):
            return True
        if mode.endswith("/*") and other.startswith(mode[:-1]):
            return True
    return False


def _check_input(modes: Sequence[str], parts: Sequence[Part]) -> None:
    for part in parts:
        if part.media_type:
            mode = part.media_type
        elif part.text is not None:
            mode = TEXT
        else:
            continue  # unlabelled bytes and data are judged by the skill
        if (
            mode not in modes
            and not _fits(mode, modes)
            and not (part.text is not None and _fits(TEXT, modes))
        ):
            raise ContentTypeNotSupported(
                f"content type {mode} is not supported here, only {', '.join(modes)}"
            )


def _check_output(modes: Sequence[str], accepted: Sequence[str]) -> None:
    if not any(_fits(mode, modes) for mode in accepted):
        raise ContentTypeNotSupported(
            f"content type {', '.join(accepted)[:200]} is not supported for answers, only {', '.join(modes)}"
        )
