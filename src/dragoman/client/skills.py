"""The skills of an agent as functions: `await agent.skills.book(city="Rome", days=3)`.

The card says what they take, if it has the schemas (`model/schema.py`). Then a wrong argument is a TypeError here, and
nothing is sent.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from dragoman.model.card import AgentCard, Skill
from dragoman.model.schema import SkillSchema, is_file, schemas_on

R = TypeVar("R")
S = TypeVar("S")


class Skills(Generic[R, S]):
    """`agent.skills.NAME`, or `agent.skills["id"]`. Iterating gives the ids."""

    def __init__(self, card: AgentCard, call: Callable[..., R], stream: Callable[..., S]) -> None:
        self._call, self._stream = call, stream
        self._schemas = schemas_on(card)
        self._skills = {skill.id: skill for skill in card.skills}

    def __iter__(self) -> Iterator[str]:
        return iter(self._skills)

    def __len__(self) -> int:
        return len(self._skills)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(id.replace("-", "_") for id in self._skills)]

    def __getitem__(self, id: str) -> RemoteSkill[R, S]:
        skill = self._skills[id]
        return RemoteSkill(skill, self._schemas.get(id, SkillSchema()), self._call, self._stream, {})

    def __getattr__(self, name: str) -> RemoteSkill[R, S]:
        if name.startswith("__"):
            raise AttributeError(name)
        for id in self._skills:
            if name in (id, id.replace("-", "_")):
                return self[id]
        raise AttributeError(f"the agent has no skill {name!r}{_hint(name, list(self._skills))}")


class RemoteSkill(Generic[R, S]):
    """A skill of an agent. Calling it sends a message and waits for the answer."""

    def __init__(
        self,
        skill: Skill,
        schema: SkillSchema,
        call: Callable[..., R],
        stream: Callable[..., S],
        options: Mapping[str, Any],
    ) -> None:
        self.id, self.name, self.description = skill.id, skill.name, skill.description
        self.input_schema, self.output_schema = schema.input, schema.output
        self.__doc__ = skill.description
        self._skill, self._schema, self._options = skill, schema, options
        self._call, self._stream = call, stream

    def with_options(self, **options: Any) -> RemoteSkill[R, S]:
        """The same skill, called with options of `Client.send`, or a `timeout`."""
        return RemoteSkill(self._skill, self._schema, self._call, self._stream, {**self._options, **options})

    def __call__(self, *content: Any, **arguments: Any) -> R:
        """Send `content` (a text, mostly) and the arguments, and return the reply."""
        return self._call(*content, **self._message(content, arguments))

    def stream(self, *content: Any, **arguments: Any) -> S:
        """The same, as a stream of pieces."""
        return self._stream(*content, **self._message(content, arguments))

    def _message(self, content: tuple[Any, ...], arguments: dict[str, Any]) -> dict[str, Any]:
        self._check(content, arguments)
        properties = (self.input_schema or {}).get("properties", {})
        files: list[Any] = []
        data: dict[str, Any] = {}
        for name, value in arguments.items():
            if is_file(properties.get(name)):
                files += value if isinstance(value, list | tuple) else [value]
            else:
                data[name] = value
        options = {**self._options, "skill": self.id}
        if files:
            options["files"] = [*options.get("files", ()), *files]
        if data:
            options["data"] = data
        if not content and not data and not files and "data" not in options:
            options["data"] = {}  # a message is not empty
        return options

    def _check(self, content: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        """Raise TypeError for arguments that the skill does not take, or needs."""
        schema = self.input_schema
        if schema is None or not isinstance(schema.get("properties"), dict):
            return
        known = schema["properties"]
        if not schema.get("additionalProperties"):
            for name in arguments:
                if name not in known:
                    raise TypeError(f"{self.id}() has no argument {name!r}{_hint(name, list(known))}")
        missing = [name for name in schema.get("required", ()) if name not in arguments]
        if missing and not content:
            raise TypeError(f"{self.id}() needs {', '.join(missing)}")

    @property
    def __signature__(self) -> inspect.Signature:
        """What `help` and an editor show."""
        schema = self.input_schema or {}
        required = schema.get("required", ())
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in required else about.get("default"),
            )
            for name, about in schema.get("properties", {}).items()
            if name.isidentifier() and isinstance(about, dict)
        ]
        return inspect.Signature(parameters)

    def __repr__(self) -> str:
        return f"<skill {self.id!r}: {self.description}>"


def _hint(name: str, known: list[str]) -> str:
    """The nearest name, or all of them."""
    if near := get_close_matches(name, known, 1):
        return f": did you mean {near[0]!r}?"
    return f": it has {', '.join(map(repr, known))}" if known else ""
