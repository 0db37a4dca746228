"""What is worth knowing, as values: entries, and the relations between them."""

from __future__ import annotations

import sqlite3

from msgspec import Struct

TYPES = ("user", "feedback", "project", "reference", "learning", "context")
RELATIONS = ("relates_to", "refines", "contradicts", "supersedes", "supports")


class Entry(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    type: str
    title: str
    content: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    artifact_id: int | None = None
    conversation_id: int = 0
    valid_from: int = 0
    valid_to: int | None = None
    created_at: int = 0
    updated_at: int = 0


class Relation(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    source_id: int
    target_id: int
    relation: str
    created_at: int = 0


def entry_of(row: sqlite3.Row) -> Entry:
    values = {name: row[name] for name in Entry.__struct_fields__}
    values["tags"] = tuple(tag for tag in row["tags"].split("\n") if tag)
    return Entry(**values)
