"""A model that helps to find what is remembered, and to file what is new.

It says a question in other words (`expand`), puts what was found in a better order (`rerank`), gives an entry tags
(`tag`), and says which older entries a new one replaces (`outdated`). It is never needed: if it fails, or says what nobody
understands, everything is as it would have been without it, and `note` says why.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.asking import Reply
from dragoman.hub.entries import Entry
from dragoman.hub.memory import Memories
from dragoman.hub.model import ChatMessage, Prompt
from dragoman.hub.recall import Search, fuse

PHRASINGS = 2
POOL, FINALISTS = 20, 8
"""Entries that are put in order, and of them those that a second model looks at more closely."""
SUSPECTS = 5
"""Older entries that a new one may replace."""
_SHORT, _LONG = 200, 800
_TAGS = 4
_OTHERWISE = 0.7
"""What a place counts that an entry has for a question in other words."""

_EXPAND = """You help to search notes. Say the question in two other ways, with other words that the notes may use. Reply with
the two phrasings, one on each line, and nothing else."""
_RERANK = """You help to search notes. Read the question and the entries, and reply with the ids of those that answer it, the best
first, separated by commas, and nothing else. Of entries that disagree, prefer the newest."""
_TAG = """You file notes. Reply with two to four tags for this note, each of lower-case words joined by hyphens, separated by
commas, and nothing else."""
_OUTDATED = """You keep notes consistent. Read the new note and the older ones. Reply with the ids of older notes that cannot be true any
more if the new one is, separated by commas, or with none. Leave a note alone if it only says something else."""

Ask = Callable[[str, Prompt], Awaitable[Reply]]
"""What is asked for, in a word, and how."""
Look = Callable[[Search], Awaitable[Sequence[Entry]]]


class Found(Struct, frozen=True, kw_only=True):
    """What the model made of it. `note`: why that is nothing."""

    words: tuple[str, ...] = ()
    """Phrasings, or tags."""
    entries: tuple[Entry, ...] = ()
    """All that were given, in the new order; or those that are out of date."""
    note: str = ""


class Librarian:
    """`model`: the name of the one that is asked; `ask` does it."""

    def __init__(self, model: str, ask: Ask) -> None:
        self.model, self._ask = model, ask

    async def expand(self, question: str) -> Found:
        reply = await self._asked("expand", _EXPAND, f"[QUESTION]\n{question}\n[END QUESTION]")
        lines = [re.sub(r"^\s*(?:[-*]|\d+[.)])\s*", "", line).strip() for line in reply.text.splitlines()]
        said = tuple(dict.fromkeys(line[:400] for line in lines if line and line != question))[:PHRASINGS]
        return Found(words=said, note=_note(reply, said))

    async def rerank(self, question: str, entries: Sequence[Entry], *, closely: bool = False) -> Found:
        pool, rest = entries[: FINALISTS if closely else POOL], entries[FINALISTS if closely else POOL :]
        text = f"[QUESTION]\n{question}\n[END QUESTION]\n\n{_listed(pool, _LONG if closely else _SHORT)}"
        reply = await self._asked("rerank_fine" if closely else "rerank", _RERANK, text)
        named = _named(reply, pool)
        others = [entry for entry in pool if entry not in named]
        return Found(entries=(*named, *others, *rest), note=_note(reply, named))

    async def tag(self, title: str, content: str, tags: Sequence[str]) -> Found:
        """Tags that it does not have yet."""
        reply = await self._asked("tag", _TAG, f"[NOTE]\n{title}\n{content[: 4 * _LONG]}\n[END NOTE]")
        said = (
            re.sub(r"[^\w]+", "-", each.strip().lower()).strip("-") for each in re.split(r"[,\n]", reply.text)
        )
        new = tuple(dict.fromkeys(tag for tag in said if 1 <= len(tag) <= 64 and tag not in tags))[:_TAGS]
        return Found(words=new, note=_note(reply, new))

    async def outdated(self, new: Entry, older: Sequence[Entry]) -> Found:
        """Those of `older` that `new` replaces."""
        text = f"[NEW]\n{new.title}\n{new.content[:_LONG]}\n[END NEW]\n\n{_listed(older, _LONG)}"
        reply = await self._asked("supersede", _OUTDATED, text)
        named = _named(reply, older)
        return Found(entries=named, note=reply.error)

    async def _asked(self, what: str, system: str, text: str) -> Reply:
        messages = (ChatMessage(role="user", content=text),)
        prompt = Prompt(model=self.model, system=system, messages=messages, max_tokens=256, temperature=0.0)
        reply = await self._ask(what, prompt)
        return replace(reply, text="") if reply.error else reply


async def find(
    look: Look,
    search: Search,
    *,
    expand: Librarian | None = None,
    rerank: Librarian | None = None,
    fine: Librarian | None = None,
) -> tuple[Sequence[Entry], dict[str, Any]]:
    """Search with the help of models, and say what they did: `expansion`, `rerank`."""
    wanted = replace(search, limit=max(search.limit, POOL)) if rerank or fine else search
    told: dict[str, Any] = {}
    rankings = [(1.0, await look(wanted))]
    if expand is not None:
        said = await expand.expand(search.query)
        rankings += [(_OTHERWISE, await look(replace(wanted, query=words))) for words in said.words]
        told["expansion"] = {
            "model": expand.model,
            "applied": bool(said.words),
            "queries": said.words,
            "note": said.note,
        }
    entries = fuse(rankings, wanted.limit)
    if rerank is not None or fine is not None:
        entries, told["rerank"] = await _ordered(search.query, entries, rerank, fine)
    return entries[: search.limit], told


async def _ordered(
    question: str, entries: Sequence[Entry], first: Librarian | None, fine: Librarian | None
) -> tuple[Sequence[Entry], dict[str, Any]]:
    told: dict[str, Any] = {"applied": False, "stages": 0, "note": ""}
    for name, librarian in (("", first), ("fine_", fine)):
        if librarian is None:
            continue
        told[f"{name}model"], told[f"{name}applied"] = librarian.model, False
        if len(entries) > 1:
            found = await librarian.rerank(question, entries, closely=librarian is fine)
            entries, told[f"{name}applied"] = found.entries, not found.note
            told["stages"] += not found.note
            told["note"] = told["note"] or found.note
    return entries, told


class Retired(Struct, frozen=True, kw_only=True):
    """The entries that a new one was compared with, and those of them that have ended."""

    candidates: Sequence[int] = ()
    invalidated: Sequence[int] = ()
    note: str = ""


async def retire(
    memories: Memories, tenant: str | int, new: Entry, librarian: Librarian, *, once: str = ""
) -> Retired:
    """End what a new entry replaces, among those of its type that are about the same."""
    near = await memories.search(tenant, Search(query=new.title, types=(new.type,), limit=POOL))
    older = [entry for entry in near if entry.type == new.type and entry.id != new.id][:SUSPECTS]
    if not older:
        return Retired()
    found = await librarian.outdated(new, older)
    ended = await memories.supersede(tenant, new.id, [entry.id for entry in found.entries], once=once)
    return Retired(candidates=[entry.id for entry in older], invalidated=ended, note=found.note)


def _listed(entries: Sequence[Entry], excerpt: int) -> str:
    lines = []
    for entry in entries:
        day = datetime.fromtimestamp(entry.updated_at, UTC).date()
        ended = ", superseded" if entry.valid_to is not None else ""
        lines.append(f"#{entry.id} ({entry.type}, {day}{ended}) {entry.title}")
        lines.append("    " + " ".join(entry.content.split())[:excerpt])
    return "\n".join(["[ENTRIES]", *lines, "[END ENTRIES]"])


def _named(reply: Reply, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries whose ids a reply has, in its order, each once."""
    known = {entry.id: entry for entry in entries}
    ids = dict.fromkeys(int(word) for word in re.findall(r"(?<!\d)\d{1,15}(?!\d)", reply.text))
    return tuple(known[id] for id in ids if id in known)


def _note(reply: Reply, found: Sequence[object]) -> str:
    return reply.error or ("" if found else "the model said nothing that could be used")
