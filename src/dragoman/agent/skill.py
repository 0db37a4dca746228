"""A function as a skill: what it takes, how to call it, what its answer becomes.

Name, docstring and type hints are the declaration. A `str` parameter gets the text of the message, a dataclass, msgspec
or pydantic parameter gets the message's data (validated), a `Turn` is given by annotation, `Message` and `Part` (a
file) likewise. Other simple parameters (`amount: float, currency: str`) are taken by name from the data.

A plain function (no `async`) is called on a thread of its own, so it may block. Not if it takes the `Turn`, which
belongs to the event loop: then it is called there, and had better be quick.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from dragoman.agent.threads import in_thread
from dragoman.engine.turn import Turn
from dragoman.errors import ContentTypeNotSupported, InvalidParams
from dragoman.model import card
from dragoman.model.content import Artifact, Message, Part
from dragoman.model.values import convert, plain

TEXT, JSON = "text/plain", "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    hint: Any
    default: Any
    takes: str
    """`turn`, `text`, `data`, `message`, `file`, `files` or `member` (one member of the data)."""

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFunction:
    """A function, its parameters and its entry in the card."""

    function: Callable[..., Any]
    skill: card.Skill
    parameters: tuple[Parameter, ...]
    reply: bool
    scopes: frozenset[str]
    default: bool
    blocks: bool
    """A plain function that does not belong to the event loop."""
    awaited: bool
    """`async def`, and no generator."""
    particular: bool
    """Not every message will do."""

    def arguments(self, turn: Turn) -> dict[str, Any]:
        """The function's arguments from the message. Raises `InvalidParams` with what is wrong."""
        return arguments_of(self, turn.message, turn)

    async def run(self, turn: Turn) -> None:
        """Call the function and make its answer the task's."""
        if self.blocks:
            outcome: Any = await in_thread(self.function, **self.arguments(turn))
        else:
            outcome = self.function(**self.arguments(turn))
        if self.awaited or inspect.isawaitable(outcome):
            outcome = await outcome
        if type(outcome) is str and not self.reply:
            await turn.artifact("result").write(outcome, last=True)
            return
        if isinstance(outcome, Generator):
            outcome = _stepped(outcome, in_thread if self.blocks else None)
        if isinstance(outcome, AsyncGenerator):
            async with aclosing(outcome):  # so that it tidies up before the task is told to be over
                async for piece in outcome:
                    await _say(turn, piece, streamed=True)
            turn.artifact("result").close()
        elif self.reply and not turn.shown:
            turn.reply(answer(outcome))
        elif outcome is not None:
            await _say(turn, outcome, streamed=False)


async def _stepped(pieces: Generator[Any, None, Any], call: Callable[..., Any] | None) -> AsyncGenerator[Any]:
    """A plain generator as an asynchronous one."""
    end = object()
    try:
        while (piece := await call(next, pieces, end) if call else next(pieces, end)) is not end:
            yield piece
    finally:
        with suppress(ValueError):  # it is still running on its thread: then nobody can close it
            pieces.close()


def answer(value: Any) -> str | Message | list[Part]:
    """What a `reply` skill returned, as the content of a message."""
    if isinstance(value, str | Message):
        return value
    return [part_of(item) for item in (value if isinstance(value, list | tuple) else [value])]


def part_of(value: Any) -> Part:
    if isinstance(value, Part):
        return value
    if isinstance(value, str):
        return Part(text=value)
    if isinstance(value, bytes):
        return Part(raw=value, media_type="application/octet-stream")
    return Part(data=plain(value))


async def _say(turn: Turn, value: Any, *, streamed: bool) -> None:
    if isinstance(value, Artifact):
        writer = turn.artifact(
            value.name,
            id=value.artifact_id,
            description=value.description,
            metadata=value.metadata,
            extensions=value.extensions,
        )
        for part in value.parts:
            await writer.write(part)
        writer.close()
        return
    parts = (
        [part_of(v) for v in value]
        if isinstance(value, list | tuple) and _all_parts(value)
        else [part_of(value)]
    )
    result = turn.artifact("result")
    for i, part in enumerate(parts, 1):
        await result.write(part, last=not streamed and i == len(parts))


def _all_parts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, Part) for value in values)


def declare(
    function: Callable[..., Any],
    *,
    id: str = "",
    name: str = "",
    description: str = "",
    tags: Sequence[str] = (),
    examples: Sequence[str] = (),
    input_modes: Sequence[str] = (),
    output_modes: Sequence[str] = (),
    reply: bool = False,
    scopes: Sequence[str] = (),
    default: bool = False,
) -> SkillFunction:
    """Read a function's declaration. Raises TypeError for one that cannot be a skill."""
    hints = get_type_hints(function)
    words = inspect.signature(function).parameters.values()
    wanted = {p.name: _wanted(hints.get(p.name, str)) for p in words}
    plain = [hint for hint, _ in wanted.values() if _takes(hint) in ("text", "member")]
    parameters = []
    for p in words:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise TypeError(f"skill {function.__name__}: *args and **kwargs have no place in a message")
        hint, optional = wanted[p.name]
        takes = _takes(hint)
        if takes == "text" and len(plain) > 1:
            takes = "member"
        absent = None if optional and p.default is p.empty else p.default
        parameters.append(Parameter(p.name, hint, absent, takes))
    returns = hints.get("return")
    takes_data = any(p.takes in ("data", "member") for p in parameters)
    word = function.__name__.replace("_", " ").strip()
    skill = card.Skill(
        id=id or function.__name__,
        name=name or word[:1].upper() + word[1:],
        description=description or inspect.getdoc(function) or word,
        tags=tuple(tags) or (function.__name__,),
        examples=tuple(examples),
        input_modes=tuple(input_modes) or ((JSON, TEXT) if takes_data else ()),
        output_modes=tuple(output_modes) or ((JSON, TEXT) if _is_data(returns) else ()),
    )
    return SkillFunction(
        function=function,
        skill=skill,
        parameters=tuple(parameters),
        reply=reply,
        scopes=frozenset(scopes),
        default=default,
        awaited=inspect.iscoroutinefunction(function),
        particular=any(p.takes in ("data", "member", "file") for p in parameters),
        blocks=not (
            inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
            or any(p.takes == "turn" for p in parameters)
        ),
    )


def _wanted(hint: Any) -> tuple[Any, bool]:
    """What a hint asks for, and whether it can do without: `Trip | None` is a `Trip`, if there is one."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) in (Union, UnionType) and len(kinds) == 1:
        return kinds[0], True
    return hint, False


def _is_data(hint: Any) -> bool:
    if not isinstance(hint, type):
        return get_origin(hint) in (dict, list, Mapping)
    return (
        is_dataclass(hint)
        or issubclass(hint, msgspec.Struct | dict | list)
        or hasattr(hint, "model_validate")
    )


def _takes(hint: Any) -> str:
    if hint is Turn:
        return "turn"
    if hint is Message:
        return "message"
    if hint is Part:
        return "file"
    if get_origin(hint) in (list, tuple) and get_args(hint)[:1] == (Part,):
        return "files"
    if hint is str or hint is Any:
        return "text"
    return "data" if _is_data(hint) else "member"


def arguments_of(skill: SkillFunction, message: Message, turn: Turn | None) -> dict[str, Any]:
    """Bind a message to the parameters. Without a turn, only check that it can be done."""
    data = message.data
    out: dict[str, Any] = {}
    for p in skill.parameters:
        match p.takes:
            case "turn":
                out[p.name] = turn
            case "message":
                out[p.name] = message
            case "text":
                out[p.name] = _text(p, message, data)
            case "file":
                if message.files:
                    out[p.name] = message.files[0]
                elif p.required:
                    raise ContentTypeNotSupported(f"skill {skill.skill.id!r} needs a file")
            case "files":
                out[p.name] = message.files if get_origin(p.hint) is tuple else list(message.files)
            case "data":
                value = data if data is not None else _json(message.text)
                if value is None and p.required:
                    why = "is missing: send it as data, or as JSON"
                    raise InvalidParams(f"{p.name!r} {why}", fields=((p.name, why),))
                _bind(out, p, value, p.name)
            case _:
                fields = data if isinstance(data, dict) else _json(message.text)
                if isinstance(fields, dict) and p.name in fields:
                    _bind(out, p, fields[p.name], p.name)
                elif sum(q.takes == "member" for q in skill.parameters) == 1 and not isinstance(fields, dict):
                    _bind(out, p, fields if fields is not None else message.text, p.name)
                elif p.required:
                    raise InvalidParams(f"{p.name!r} is missing", fields=((p.name, "is missing"),))
    return out


def _text(p: Parameter, message: Message, data: Any) -> Any:
    if any(part.text is not None for part in message.parts):
        return message.text
    if isinstance(data, dict) and isinstance(data.get(p.name), str):
        return data[p.name]
    if not p.required:
        return p.default
    return "" if data is None else msgspec.json.encode(data).decode()


def _bind(out: dict[str, Any], p: Parameter, value: Any, name: str) -> None:
    if value is None and not p.required:
        return
    try:
        out[p.name] = convert(value, p.hint)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        why = str(error).splitlines()[0] if not hasattr(error, "errors") else _pydantic_why(error)
        raise InvalidParams(f"{name}: {why}", fields=((name, why),)) from error


def _pydantic_why(error: Any) -> str:
    return "; ".join(f"{'.'.join(str(x) for x in e['loc'])}: {e['msg']}" for e in error.errors())


def _json(text: str) -> Any:
    try:
        return (
            msgspec.json.decode(text)
            if text.strip()[:1] in ("{", "[", '"') or text.strip()[:1].isdigit()
            else None
        )
    except msgspec.DecodeError:
        return None
