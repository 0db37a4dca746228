"""`/mem` and `/lesson`: scratchpads, structured memory, and lessons.

A lesson is a memory of type `learning` whose source is the agent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from dragoman.hub.quote import flatten, quote
from dragoman.hub.store.memories import SHARED, Memories, Scratchpads
from dragoman.hub.store.memory_search import RELATIONS, TYPES, MemoryEntry, MemorySearch
from dragoman.hub.tools import Command, Session, Tool, parse_id

MAX_BODY_BYTES = 32 * 1024
USAGE = """/mem write <text> | /mem read | /mem clear   your own notes; /mem shared write|read|clear: everybody's
/mem search <words>   find what was remembered; /mem entries [type,… | tag=<tag>]; /mem entry <id>; /mem expand <id> [depth=2]; /mem density <id>
/mem add entry <type> <title> [--artifact #id] [--supersedes #a,#b]
<what to remember>
/endmem   types: user feedback project reference learning context
/mem add link <id> <relation> <id>   relations: relates_to refines contradicts supersedes supports; /mem invalidate <id>"""

Verb = Callable[[str, Command, Session], Awaitable[str]]


class MemTool(Tool):
    names = ("/mem",)
    usage = USAGE

    def __init__(self, scratchpads: Scratchpads, memories: Memories) -> None:
        self._pads, self._memories = scratchpads, memories
        self._verbs: dict[str, Verb] = {
            "shared": self._shared,
            "search": self._search,
            "entries": self._entries,
            "entry": self._entry,
            "expand": self._expand,
            "density": self._density,
            "add": self._add,
            "invalidate": self._invalidate,
        }

    def label(self, command: Command) -> str:
        words = command.args.lower().split()
        return "mem:" + " ".join(words[: 2 if words[:1] in (["add"], ["shared"]) else 1])[:40]

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        if verb.lower() in ("write", "read", "show", "clear"):
            return await self._pad(verb.lower(), rest.strip(), session, session.agent)
        if (run_verb := self._verbs.get(verb.lower())) is None:
            return f"ERR: usage:\n{USAGE}"
        return await run_verb(rest.strip(), command, session)

    async def _pad(self, verb: str, text: str, session: Session, scope: str) -> str:
        """The notes of the agent, or those that all agents share."""
        pads = self._pads.once(session.write_key)
        match verb:
            case "write" if text:
                await pads.add(session.tenant, scope, text)
                return "OK: noted"
            case "read" | "show":
                return await pads.read(session.tenant, scope) or "(no memory)"
            case "clear":
                await pads.clear(session.tenant, scope)
                return "OK: cleared"
        return f"ERR: usage: /mem {'' if scope else 'shared '}write <text> | read | clear"

    async def _shared(self, rest: str, command: Command, session: Session) -> str:
        verb, _, text = rest.partition(" ")
        return await self._pad(verb, text.strip(), session, SHARED)

    # -- entries -----------------------------------------------------------------------------------------------

    async def _search(self, rest: str, command: Command, session: Session) -> str:
        query, ranking = " ".join(rest.split()), session.constitution.memory
        if not query:
            return "ERR: usage: /mem search <words>"
        search = MemorySearch(query=query, conversation=session.conversation, wide=True, ranking=ranking)
        found = await self._memories.search(session.tenant, search)
        if not found:
            return f"(no entries match '{query}')"
        lines: list[str] = []
        for place, entry in enumerate(found):
            here = session.conversation and entry.conversation_id == session.conversation
            lines.append(_line(entry) + ("  [conversation]" if here else ""))
            if place < 3 and entry.content:
                lines.append("    " + flatten(entry.content, 400))
        return "\n".join(lines)

    async def _entries(self, rest: str, command: Command, session: Session) -> str:
        tag = rest.removeprefix("tag=") if rest.startswith("tag=") else ""
        types = tuple(re.split(r"[,\s]+", rest.removeprefix("type="))) if rest and not tag else ()
        if unknown := [word for word in types if word not in TYPES]:
            return f"ERR: there is no type {unknown[0][:40]!r}; types: {' '.join(TYPES)}"
        found = await self._memories.list(session.tenant, types=types, tag=tag)
        return "\n".join(_line(entry) for entry in found) or "(no entries)"

    async def _entry(self, rest: str, command: Command, session: Session) -> str:
        entry = await self._memories.get(session.tenant, parse_id(rest))
        if entry is None:
            return f"ERR: there is no entry {rest!r}"
        lines = [_line(entry), quote(entry.content) if entry.content else ""]
        for relation in await self._memories.relations(session.tenant, entry.id):
            away = relation.source_id == entry.id
            other = await self._memories.get(
                session.tenant, relation.target_id if away else relation.source_id
            )
            if other is not None:
                arrow = f"{relation.relation} →" if away else f"← {relation.relation}"
                lines.append(f"  {arrow} #{other.id} {flatten(other.title)}")
        if entry.artifact_id is not None:
            lines.append(f"file: /read #{entry.artifact_id} via=mem:{entry.id}")
        return "\n".join(line for line in lines if line)

    async def _expand(self, rest: str, command: Command, session: Session) -> str:
        given = re.search(r"depth=(\d)", rest)
        depth = min(2, int(given[1])) if given else 1
        around = await self._memories.related_entries(
            session.tenant, parse_id(rest.split(" ")[0]), depth=depth
        )
        return "\n".join(f"{'  ' * distance}{_line(entry)}" for distance, entry in around) or "(nothing near)"

    async def _density(self, rest: str, command: Command, session: Session) -> str:
        id = parse_id(rest)
        relations = await self._memories.relations(session.tenant, id)
        away = sum(relation.source_id == id for relation in relations)
        kinds = ", ".join(sorted({relation.relation for relation in relations})) or "none"
        near = await self._memories.related_entries(session.tenant, id, depth=2)
        return f"{len(relations) - away} relations in, {away} out ({kinds}); {len(near)} entries within two steps"

    async def _add(self, rest: str, command: Command, session: Session) -> str:
        what, _, rest = rest.partition(" ")
        if what == "link":
            words = rest.split()
            if len(words) != 3:
                return f"ERR: usage: /mem add link <id> <relation> <id>; relations: {' '.join(RELATIONS)}"
            memories = self._memories.once(session.write_key)
            made = await memories.relate(session.tenant, parse_id(words[0]), words[1], parse_id(words[2]))
            return f"OK: added link #{made.id}"
        if what != "entry":
            return f"ERR: usage:\n{USAGE}"
        return await self._add_entry(rest, command, session)

    async def _add_entry(self, rest: str, command: Command, session: Session) -> str:
        artifact = re.search(r"\s--artifact\s+#?(\d+)", rest)
        supersedes = re.search(r"\s--supersedes\s+([#\d,\s]+)", rest)
        for option in (artifact, supersedes):
            if option is not None:
                rest = rest.replace(option[0], " ")
        type, _, title = rest.strip().partition(" ")
        body = (command.body or "").strip()
        if type not in TYPES or not title.strip():
            return f"ERR: usage: /mem add entry <type> <title>; types: {' '.join(TYPES)}"
        if not 1 <= len(body.encode()) <= MAX_BODY_BYTES:
            return f"ERR: what to remember has 1 to {MAX_BODY_BYTES} bytes"
        entry = await self._memories.once(session.write_key).add(
            session.tenant,
            type,
            " ".join(title.split()),
            body,
            source=session.agent,
            artifact_id=parse_id(artifact[1]) if artifact else None,
            conversation=session.conversation,
            reader=session.conversation,
            supersedes=[parse_id(id) for id in re.findall(r"\d+", supersedes[1])] if supersedes else (),
        )
        return f"OK: added entry #{entry.id} [{entry.type}] {entry.title}"

    async def _invalidate(self, rest: str, command: Command, session: Session) -> str:
        if not await self._memories.once(session.write_key).invalidate(session.tenant, parse_id(rest)):
            return f"ERR: there is no valid entry {rest!r}"
        return f"OK: entry #{parse_id(rest)} is not valid any more"


def _line(entry: MemoryEntry) -> str:
    tags = f"  ({flatten(', '.join(entry.tags))})" if entry.tags else ""
    return f"- #{entry.id}  [{entry.type}]  {flatten(entry.title)}{tags}"


LESSON = "learning"
MAX_REMINDERS = 3
"""Lessons in the prompt before a request."""
REMINDER_BYTES = 16 * 1024
"""Bytes of all lessons before a request."""


class LessonTool(Tool):
    names = ("/lesson",)
    usage = (
        "/lesson <where it went wrong>: <what to do instead> | /lesson list | /lesson search <words> | "
        "/lesson delete <id>   remember for next time (longer ones: the first line, the lesson, /endlesson)"
    )

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    def label(self, command: Command) -> str:
        return f"lesson:{command.args[:80]}"

    async def preamble(self, session: Session) -> str:
        """The lessons that match a request, to be put before it."""
        lines = await self._search(session, session.original, MAX_REMINDERS)
        quoted = quote("\n".join(lines), REMINDER_BYTES)
        return f"[KNOWN PITFALLS]\n{quoted}\n[END KNOWN PITFALLS]" if lines else ""

    async def run(self, command: Command, session: Session) -> str:
        verb, _, rest = command.args.partition(" ")
        match verb:
            case "list" if command.body is None:
                found = await self._memories.list(session.tenant, types=(LESSON,), source=session.agent)
                return "\n".join(map(_lesson_line, found)) or "(no lessons yet)"
            case "search" if command.body is None:
                lines = await self._search(session, rest, 50)
                return "\n".join(lines) or f"(no lessons about {rest!r})"
            case "delete" if command.body is None:
                return await self._delete(rest, session)
        where, text = command.args, command.body
        if text is None:
            where, _, text = command.args.partition(": ")
        if not text.strip():
            return "ERR: a lesson says what to do instead"
        memories = self._memories.once(session.write_key)
        made = await memories.add(session.tenant, LESSON, where, text.strip(), source=session.agent)
        return f"OK: recorded lesson {_lesson_line(made)[2:]}"

    async def _search(self, session: Session, words: str, limit: int) -> list[str]:
        search = MemorySearch(query=words, types=(LESSON,), source=session.agent, limit=limit)
        return [_lesson_line(entry) for entry in await self._memories.search(session.tenant, search)]

    async def _delete(self, which: str, session: Session) -> str:
        id = parse_id(which)
        entry = await self._memories.get(session.tenant, id)
        mine = entry is not None and (entry.type, entry.source) == (LESSON, session.agent)
        memories = self._memories.once(session.write_key)
        if not mine or not await memories.invalidate(session.tenant, id):
            return f"ERR: there is no lesson {which!r} of yours"
        return f"OK: lesson #{id} is deleted"


def _lesson_line(entry: MemoryEntry) -> str:
    return f"- [{flatten(entry.title)}] {entry.content} (#{entry.id})"
