"""A constitution: a JSON document that defines an agent: its purpose, its style, its model, its commands.

`read_constitution` parses a JSON object and reports every mistake at once. `build_card` builds the agent card. `constitution_schema`
describes the document. The catalogue (`store/catalogue.py`) stores it with versions and times.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import InvalidParams
from dragoman.model.card import (
    AgentCard,
    Capabilities,
    HttpAuthScheme,
    SecurityRequirement,
    SecurityScheme,
    Skill,
    StringList,
)

BUNDLES: dict[str, tuple[str, ...]] = {
    "web": ("/search", "/fetch", "/browse"),
    "exec": ("/exec",),
    "write": ("/write",),
    "read": ("/read", "/list", "/map"),
    "mem": ("/mem",),
    "delegation": ("/agent", "/parallel", "/pane"),
    "mcp": ("/mcp",),
    "a2a": ("/a2a",),
    "advise": ("/advise",),
    "todos": ("/todo",),
    "schedule": ("/schedule",),
    "lessons": ("/lesson",),
}
"""Granting one command of a bundle grants the whole bundle."""

SAFE_BUNDLES = ("read", "advise")
"""What a constitution without capabilities may use: commands that change nothing, run nothing, and send nothing to strangers."""

COMMANDS = tuple(command for commands in BUNDLES.values() for command in commands)

SKILLS: dict[str, tuple[str, str]] = {
    "/fetch": ("fetch-url", "Reads a web page and returns its text."),
    "/search": ("web-search", "Searches the web and sums up what it finds."),
    "/browse": ("browse-page", "Opens a page in a browser and reads it."),
    "/exec": ("shell-exec", "Runs a shell command in a confined place."),
    "/write": ("write-file", "Makes or replaces a file."),
    "/read": ("read-file", "Reads a file."),
    "/list": ("list-files", "Lists files."),
    "/map": ("workspace-map", "Shows the tree of the workspace."),
    "/mem": ("memory", "Keeps, finds and forgets what is worth remembering."),
    "/mcp": ("mcp-tools", "Uses the tools of MCP servers."),
    "/agent": ("delegate", "Hands part of the work to another agent."),
    "/parallel": ("parallel-fanout", "Has several agents work at once."),
    "/advise": ("advisor-consult", "Asks a stronger model for advice."),
    "/todo": ("todos", "Keeps track of what is still to do."),
    "/schedule": ("schedule", "Has work done later, or again and again."),
    "/lesson": ("lessons", "Records what to do better next time."),
}
"""The skill on the card for a command: id and description."""

_BUNDLE = {command: bundle for bundle, commands in BUNDLES.items() for command in commands}


def bundle_of(command: str) -> str:
    """The bundle of a command; empty for one that needs no grant (`/help`)."""
    return _BUNDLE.get(command, "")


INDEX_ID = "index"
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

TOKEN_SCHEMES = {"bearer": SecurityScheme(http_auth_security_scheme=HttpAuthScheme(scheme="bearer"))}
TOKEN_REQUIRED = (SecurityRequirement(schemes={"bearer": StringList()}),)
"""Every card of a hub requires a tenant's token."""

MAX_CONSTITUTION_BYTES = 256 * 1024

Short = Annotated[str, Meta(max_length=200)]
Long = Annotated[str, Meta(max_length=20_000)]


class Advisor(Struct, frozen=True, kw_only=True):
    """A second model. The agent asks it with `/advise` (`consult`), or it checks each answer (`gate`)."""

    model: Annotated[Short, Meta(description="The model that advises.")] = ""
    mode: Annotated[
        Literal["consult", "gate"],
        Meta(description="`consult`: the agent may ask it. `gate`: it also approves each answer."),
    ] = "consult"
    prompt: Annotated[
        Long, Meta(description="What the advisor is told about its task; empty: the usual.")
    ] = ""
    max_redirects: Annotated[
        int, Meta(ge=0, le=5, description="How often the gate may send an answer back.")
    ] = 2
    malformed_halts: Annotated[
        bool, Meta(description="A verdict that cannot be read stops the answer; otherwise it lets it pass.")
    ] = True


class Memory(Struct, frozen=True, kw_only=True):
    """How searches of structured memory rank entries."""

    intent_routing: Annotated[
        bool, Meta(description="Entries of the type that a question seems to be about rank higher.")
    ] = True
    age_decay: Annotated[bool, Meta(description="Older entries rank lower.")] = True
    age_half_life_days: Annotated[float, Meta(gt=0, le=36_500)] = 90
    age_floor: Annotated[float, Meta(ge=0, le=1)] = 0.5


class Intent(Struct, frozen=True, kw_only=True):
    """Whether a request is handed to a specialist before the agent itself works on it."""

    mode: Annotated[
        Literal["off", "heuristic", "hybrid", "llm"],
        Meta(
            description="`heuristic` goes by words of agents' roles and goals, `llm` asks a model, `hybrid` if words leave it open."
        ),
    ] = "off"
    min_confidence: Annotated[float, Meta(ge=0, le=1)] = 0.8
    apply_routing: Annotated[bool, Meta(description="False: only say who would have got it.")] = True
    model: Short = ""


class Constitution(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document. Members that are not listed here are ignored."""

    id: Annotated[
        str,
        Meta(pattern=r"^[A-Za-z0-9_-]{1,64}(?!\n)$", description="Its name in addresses and in `/agent`."),
    ] = ""
    name: Annotated[Short, Meta(description="Its name for people; empty: the id.")] = ""
    role: Annotated[Short, Meta(description="What it is, in a word or two: `research-analyst`.")] = ""
    personality: Annotated[Long, Meta(description="How it speaks and decides.")] = ""
    goal: Annotated[Long, Meta(description="What it is to achieve; orchestrators choose it by this.")] = ""
    model: Annotated[Short, Meta(description="`provider/name`; empty: the hub's default.")] = ""
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000, description="Per model call.")] = 4096
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.3
    brevity: Literal["lite", "full", "ultra"] = "full"
    mode: Annotated[
        Literal["", "standard", "conversational", "spoken", "writer", "planner"],
        Meta(description="The voice it speaks in; empty is `standard`."),
    ] = ""
    channel: Annotated[
        Literal["", "text", "voice"], Meta(description="`voice`: answers are read aloud; empty is `text`.")
    ] = ""
    rules: Annotated[tuple[Long, ...], Meta(max_length=100, description="What it always or never does.")] = ()
    capabilities: Annotated[
        tuple[Short, ...],
        Meta(
            max_length=64,
            description="The commands it may use, an allow-list: `/fetch`, or a bundle: `web`. A command grants its "
            "bundle. Empty: the safe ones, `/read`, `/list` and `/advise`.",
        ),
    ] = ()
    event_types: Annotated[tuple[Short, ...], Meta(max_length=64)] = ()
    advisor: Advisor | None = None
    memory: Memory = Memory()
    intent: Intent = Intent()
    budget: Annotated[
        int,
        Meta(
            ge=0,
            description="Tokens that one request may use, those of agents it asks included; 0: no limit.",
        ),
    ] = 0
    context_history: Annotated[
        bool, Meta(description="Remember earlier tasks of the same A2A context; off: each task stands alone.")
    ] = False

    @property
    def title(self) -> str:
        return self.name or self.id

    @property
    def gated(self) -> bool:
        """Its advisor checks each answer."""
        return self.advisor is not None and self.advisor.mode == "gate"

    @property
    def bundles(self) -> frozenset[str]:
        """The bundles it may use."""
        if self.id == INDEX_ID:
            return frozenset(BUNDLES)
        if not self.capabilities:
            return frozenset(SAFE_BUNDLES)
        return frozenset(bundle_of(capability) for capability in self.capabilities)

    def grants(self, bundle: str) -> bool:
        """True if the agent may use the commands of a bundle. Commands of none (`""`) need no grant."""
        return not bundle or bundle in self.bundles


INDEX = Constitution(
    id=INDEX_ID,
    name="Index",
    role="orchestrator",
    personality="Calm and direct. Does what is quicker done than described, and gives the rest to whoever does it best.",
    goal="understand what is wanted, bring in the agents that fit, and answer with one voice",
    max_tokens=4096,
    mode="conversational",
    rules=(
        "Delegate only what another agent does better; answer small talk and simple questions yourself.",
        "Give an agent everything it needs in its task: it does not see this conversation.",
        "When results are in, answer the question; do not recite who did what.",
    ),
)
"""The orchestrator that every tenant has. Nobody can change it or delegate to it."""


def read_constitution(doc: Any, *, id: str = "") -> Constitution:
    """Parse a JSON object. Raises `InvalidParams` with a reason for each wrong field.

    `id` stands in for a document that has none. An `advisor` may also be the name of a model; so may the older
    `advisor_model`. Capabilities come out as commands: `web` as `/search /fetch /browse`.
    """
    if not isinstance(doc, dict):
        raise InvalidParams(
            "an agent definition is a JSON object", fields=(("agent_def", "is not an object"),)
        )
    # with ignored members: the document may be stored with a conversation
    if len(msgspec.json.encode(doc)) > MAX_CONSTITUTION_BYTES:
        raise _too_large()
    doc = {**doc, "id": id if doc.get("id") in (None, "") else doc["id"]}
    if not doc.get("advisor") and isinstance(doc.get("advisor_model"), str) and doc["advisor_model"]:
        doc["advisor"] = {"model": doc["advisor_model"]}
    elif isinstance(doc.get("advisor"), str):
        doc["advisor"] = {"model": doc["advisor"]} if doc["advisor"] else None
    mistakes: list[tuple[str, str]] = []
    if doc["id"] == "":
        mistakes.append(("id", "is missing"))
        del doc["id"]
    values = _read_members(Constitution, doc, "", mistakes)
    if "capabilities" in values:
        values["capabilities"] = _read_capabilities(values["capabilities"], mistakes)
    if isinstance(advisor := doc.get("advisor"), dict) and advisor.get("model") in (None, ""):
        mistakes.append(("advisor.model", "is missing: name the model that advises"))
    if mistakes:
        reasons = "; ".join(f"{name} {why}" for name, why in mistakes)
        raise InvalidParams(f"this is not a valid agent definition: {reasons}", fields=mistakes)
    constitution = Constitution(**values)
    if len(msgspec.json.encode(constitution)) > MAX_CONSTITUTION_BYTES:
        raise _too_large()
    return constitution


def ignored_members(document: dict[str, Any]) -> list[str]:
    """A sentence for each member of a document that `read_constitution` ignores, with the nearest known member."""
    tables: list[tuple[str, type[Struct], dict[str, Any]]] = [("", Constitution, document)]
    for name, kind in _NESTED.items():
        if isinstance(inner := document.get(name), dict):
            tables.append((f"{name}.", kind, inner))
    sentences: list[str] = []
    for at, kind, members in tables:
        known = kind.__struct_fields__
        for member in members.keys() - known - (_OTHER_MEMBERS if kind is Constitution else set()):
            near = difflib.get_close_matches(member, known, 1)
            hint = f"; did you mean {at + near[0]!r}?" if near else ""
            sentences.append(f"{(at + member)[:80]!r} is ignored, because agents have no such member{hint}")
    return sorted(sentences)


def _too_large() -> InvalidParams:
    why = f"has more than {MAX_CONSTITUTION_BYTES} bytes in all"
    return InvalidParams(f"this is not a valid agent definition: it {why}", fields=(("agent_def", why),))


def build_card(constitution: Constitution, agent_id: str = "", version: str = "") -> AgentCard:
    """The agent card, without addresses."""
    agent_id = agent_id or constitution.id
    about = " — ".join(word for word in (constitution.role, constitution.goal) if word)
    return AgentCard(
        name=constitution.name or agent_id,
        description=about or "an agent of this hub",
        version=INDEX_ID if agent_id == INDEX_ID else version or "1",
        capabilities=Capabilities(streaming=True, push_notifications=False),
        default_input_modes=("text/plain",),
        default_output_modes=("text/plain", "application/json"),
        skills=(_CHAT, *(_skill(capability) for capability in constitution.capabilities)),
        security_schemes=TOKEN_SCHEMES,
        security_requirements=TOKEN_REQUIRED,
    )


def constitution_schema() -> dict[str, Any]:
    """The JSON Schema of what `read_constitution` accepts."""
    out = msgspec.json.schema(Constitution)
    shapes = out["$defs"]
    for shape, needed in (("Constitution", "id"), ("Advisor", "model")):
        shapes[shape]["required"] = [needed]
        del shapes[shape]["properties"][needed]["default"]
    shapes["Advisor"]["properties"]["model"]["minLength"] = 1
    named = {"type": "string", "maxLength": 200, "description": "The model that advises, and is asked."}
    shapes["Constitution"]["properties"]["advisor"]["anyOf"].insert(1, named)
    return out


_CHAT = Skill(id="chat", name="chat", description="Talk with it in plain text.", tags=("text",))


def _skill(capability: str) -> Skill:
    name, description = SKILLS.get(
        capability, (capability.removeprefix("/") or "capability", f"What {capability} does.")
    )
    return Skill(id=name, name=name, description=description, tags=(capability,))


def _read_capabilities(given: tuple[str, ...], mistakes: list[tuple[str, str]]) -> tuple[str, ...]:
    """The commands, in order, each once. Adds a mistake with a suggestion for each unknown word."""
    out: dict[str, None] = {}
    for i, word in enumerate(given):
        plain = word.strip().lower()
        if (commands := BUNDLES.get(plain)) is not None:
            out.update(dict.fromkeys(commands))
        elif (command := "/" + plain.removeprefix("/")) in COMMANDS:
            out[command] = None
        else:
            names = [*COMMANDS, *BUNDLES]
            near = difflib.get_close_matches(command, names, 1, 0.5) or difflib.get_close_matches(
                plain, names, 1, 0.5
            )
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
            mistakes.append((f"capabilities[{i}]", f"{word!r} is not known: {hint}"))
    return tuple(out)


_OTHER_MEMBERS = {"$schema", "advisor_model", "created_at", "updated_at", "version"}
"""Members that are ignored without a warning: an older name, and what a hub adds when it shows an agent."""
_NESTED: dict[str, type[Struct]] = {"advisor": Advisor, "memory": Memory, "intent": Intent}


def _read_members(
    kind: type[Struct], doc: dict[str, Any], prefix: str, mistakes: list[tuple[str, str]]
) -> dict[str, Any]:
    """The members of an object; null counts as absent. Adds mistakes, each with a field that begins with `prefix`."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if (value := doc.get(field.name)) is None:
            continue
        nested = _NESTED.get(field.name) if kind is Constitution and isinstance(value, dict) else None
        try:
            if nested is not None:
                value = _read_members(nested, value, f"{field.name}.", mistakes)
            values[field.name] = msgspec.convert(value, nested or field.type)
        except msgspec.ValidationError as error:
            mistakes.append(_explain(prefix + field.name, str(error)))
    return values


def _explain(name: str, error: str) -> tuple[str, str]:
    """`Expected int, got str - at $.mode` as a field and a reason."""
    why, _, path = error.replace("`", "").partition(" - at ")
    field = name + path.removeprefix("$")
    if field == "id" and "regex" in why:
        return field, "has 1 to 64 letters, digits, _ and -"
    if why.startswith("Invalid enum value"):
        return field, f"is one of {', '.join(repr(word) for word in _choices(Constitution, field))}"
    return field, why[:1].lower() + why[1:]


def _choices(kind: Any, field: str) -> tuple[str, ...]:
    """The values that a field such as `advisor.mode` may have."""
    name, _, rest = field.partition(".")
    type = get_type_hints(kind)[name]
    struct = next((each for each in (type, *get_args(type)) if hasattr(each, "__struct_fields__")), None)
    return _choices(struct, rest) if struct is not None else get_args(type)
