"""`wrap(obj)`: the agent of another framework as an `Agent`.

The framework of an object is recognised by the modules of its classes, so that no framework is imported that is not
already there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypedDict, Unpack

from dragoman.adapters.adapter import Instances, Runnable, RunOptions, work
from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.model.card import Extension, Provider, Skill
from dragoman.model.ops import Principal
from dragoman.model.options import check_options

ADAPTERS = {
    "langgraph": "langgraph",
    "pydantic_ai": "pydantic_ai",
    "agents": "openai_agents",
    "google.adk": "google_adk",
    "agent_framework": "agent_framework",
    "strands": "strands",
    "workflows": "llama_index_workflows",
    "crewai": "crewai",
    "smolagents": "smolagents",
    "a2a": "a2a_sdk",
    "dragoman.executor": "a2a_sdk",
    "dragoman.mcp": "mcp_server",
}
"""The package that an object's class comes from, and the module here that wraps it."""


class WrapOptions(TypedDict, total=False):
    """Options of `wrap`: those of the framework's run, of the skill on the card, and of `Agent`."""

    run: RunOptions
    """Arguments for the framework's own function (`deps`, `context`, `max_turns`, ...), or a function of the turn that
    returns them."""
    show_tools: bool
    """Whether peers see which tools are called, with arguments and results (default: yes)."""
    input: Callable[[Any], Any]
    """Makes the framework's input of a message."""
    output: Callable[[Any], Any]
    """Makes the answer of what the framework returned."""
    skill: str
    """The id of the skill on the card."""
    tags: Sequence[str]
    examples: Sequence[str]
    scopes: Sequence[str]
    id: str
    version: str
    provider: Provider | None
    documentation_url: str
    icon_url: str
    streaming: bool
    push: bool
    extensions: Sequence[Extension]
    input_modes: Sequence[str]
    output_modes: Sequence[str]
    versions: Sequence[str]
    auth: Any
    authorize: Callable[[Principal, Any], Any] | None
    extended_card: Callable[[Principal], Any] | Sequence[Skill] | None
    private_card: bool


_WRAP_OPTIONS = ("run", "show_tools", "input", "output", "skill", "tags", "examples", "scopes")
MODES = ("text/plain", "application/json", "*/*")


def wrap(obj: Any, name: str = "", description: str = "", **options: Unpack[WrapOptions]) -> Agent:
    """The agent of another framework as an `Agent`, to be served: `wrap(graph, name="Travel").run()`.

    `obj` is a LangGraph graph, an agent of pydantic-ai, the OpenAI Agents SDK, Google ADK, Microsoft Agent Framework,
    Strands or smolagents, a workflow of LlamaIndex, a flow or a crew of CrewAI, an `AgentExecutor` of a2a-sdk, or `dragoman.mcp.mcp(...)`;
    `docs/frameworks.md` lists all. It may also be a function without parameters that makes one. Text is streamed, tool calls are
    status updates, an interrupt or an approval is `input-required`, and the framework's state is in the task's log: a task that
    waits survives a restart.
    """
    check_options(options, WrapOptions, "wrap", ("name", "description"))
    if isinstance(obj, Agent):
        raise TypeError(f"{obj.name!r} is an Agent already: it needs no wrap")
    make: Callable[[], Any] | None = None
    if inspect.isfunction(obj) and not any(
        parameter.default is parameter.empty for parameter in inspect.signature(obj).parameters.values()
    ):
        make, obj = obj, obj()
    module = _adapter_for(obj)
    agent_options: dict[str, Any] = dict(options)
    wrap_options = {option: agent_options.pop(option) for option in _WRAP_OPTIONS if option in agent_options}
    name = name or _text(obj, "name") or _text(obj, "id") or "agent"
    description = description or _text(obj, "description") or _text(obj, "handoff_description")
    if hasattr(module, "make_agent"):
        for option in getattr(module, "SKILL_OPTIONS", ()):
            if option in wrap_options:
                agent_options[option] = wrap_options.pop(option)
        for option in wrap_options:
            raise TypeError(f"wrap: {option!r} is not for an object of {type(obj).__module__}")
        made: Agent = module.make_agent(obj, name, description, agent_options)
        return made
    functions = wrap_options.pop("input", None), wrap_options.pop("output", None)
    adapter: Runnable = module.make_adapter(Instances(obj, make), *functions)
    inputs, outputs = agent_options.pop("input_modes", MODES), agent_options.pop("output_modes", MODES)
    agent = Agent(name, description, input_modes=inputs, output_modes=outputs, **agent_options)
    run_options, show_tools = wrap_options.pop("run", {}), wrap_options.pop("show_tools", True)

    async def answer(turn: Turn) -> None:
        await work(adapter, turn, options=run_options, show_tools=show_tools)

    skill = wrap_options.pop("skill", "") or agent.id
    agent.skill(
        id=skill,
        name=name,
        description=description or name,
        input_modes=inputs,
        output_modes=outputs,
        default=True,
        **wrap_options,
    )(answer)
    return agent


def _adapter_for(obj: Any) -> Any:
    """The module here for an object."""
    for package in _packages(type(obj)):
        found = ADAPTERS.get(package)
        if found is None:
            continue
        try:
            return import_module(f"dragoman.adapters.{found}")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("dragoman"):
                raise
            extra = f"pip install 'dragoman[{_extra(found)}]'"
            raise ModuleNotFoundError(
                f"to wrap this {type(obj).__name__}, {error.name} is missing: {extra}"
            ) from error
    if callable(getattr(obj, "execute", None)) and callable(getattr(obj, "cancel", None)):
        return import_module("dragoman.adapters.a2a_sdk")
    kind = obj if isinstance(obj, type) else type(obj)
    if isinstance(obj, type) and any(package in ADAPTERS for package in _packages(obj)):
        raise TypeError(f"wrap takes an object, and {kind.__name__} is a class: wrap({kind.__name__}(...))")
    known = ", ".join(sorted(set(map(_extra, ADAPTERS.values()))))
    raise TypeError(f"wrap does not know {kind.__module__}.{kind.__qualname__}; it knows {known}")


def _extra(module: str) -> str:
    """The extra that installs the framework of a module here."""
    return "mcp" if module == "mcp_server" else module.replace("_", "-")


def _packages(kind: type) -> Iterator[str]:
    """The packages that the classes of an object come from, the longest name first."""
    for each in kind.__mro__:
        parts = each.__module__.split(".")
        for length in range(len(parts), 0, -1):
            yield ".".join(parts[:length])


def _text(obj: Any, name: str) -> str:
    found = getattr(obj, name, None)
    return found.strip() if isinstance(found, str) else ""
