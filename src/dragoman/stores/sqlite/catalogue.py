"""The catalogue in a SQLite file: registered agents, and full-text search (FTS5).

Each word of a query is searched in each column. So the score of a text depends on that text alone. A score of BM25 would depend on
texts that the caller may not see.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from msgspec import json

from dragoman.engine.protocols import SEARCH_WEIGHTS, RegisteredAgent, SearchText
from dragoman.stores.search_words import finds_longer_words, split_members, split_query
from dragoman.stores.sqlite.commits import NOTHING, Finish
from dragoman.stores.sqlite.file import SqliteFile

_COLUMNS = "select tenant, name, url, due, body from catalogue_agents"
_ALL = f"{_COLUMNS} order by name, tenant"
_COUNT = "select count(*) from catalogue_agents"
_REGISTER = "insert or ignore into catalogue_agents (tenant, name, url, due, body) values (?, ?, ?, ?, ?)"
_UNREGISTER = "delete from catalogue_agents where tenant = ? and name = ?"
_DUE = f"{_COLUMNS} where due <= ? order by due limit ?"
_TAKE = "update catalogue_agents set due = ? where tenant = ? and name = ?"
_UPDATE = "update catalogue_agents set due = ?, body = ? where tenant = ? and name = ? and url = ?"
_USE = "update catalogue_texts set used = ? where digest = ?"
_ADD = "insert into catalogue_texts (digest, used) values (?, ?)"
_ADD_WORDS = "insert into catalogue_words (rowid, name, tags, skills, about) values (?, ?, ?, ?, ?)"
_OLD = "select id from catalogue_texts where used < ? limit 1000"
_FORGET = ("delete from catalogue_words where rowid = ?", "delete from catalogue_texts where id = ?")
_HITS = "select rowid, ?, ? from catalogue_words where catalogue_words match ?"
_SEARCH = """
with hits (id, word, weight) as ({hits}),
best (id, weight) as (select id, max(weight) from hits group by id, word)
select digest, sum(weight) as score from best join catalogue_texts using (id)
where digest in (select value from json_each(?)) group by id order by score desc, digest limit ?
"""


class SqliteCatalogue:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def registered(self) -> Sequence[RegisteredAgent]:
        rows = await self._file.reads.in_thread(lambda db: db.execute(_ALL).fetchall())
        return [_agent(row) for row in rows]

    async def register(self, agent: RegisteredAgent, *, limit: int) -> bool:
        def job(db: sqlite3.Connection) -> Finish[bool]:
            if db.execute(_COUNT).fetchone()[0] >= limit:
                return lambda: False
            values = (agent.tenant, agent.name, agent.url, agent.due, agent.body)
            added = db.execute(_REGISTER, values).rowcount > 0
            return lambda: added

        return await self._file.commits.submit(job)

    async def unregister(self, tenant: str, name: str) -> bool:
        def job(db: sqlite3.Connection) -> Finish[bool]:
            gone = db.execute(_UNREGISTER, (tenant, name)).rowcount > 0
            return lambda: gone

        return await self._file.commits.submit(job)

    async def take_due(self, now: float, until: float, *, limit: int) -> Sequence[RegisteredAgent]:
        def job(db: sqlite3.Connection) -> Finish[Sequence[RegisteredAgent]]:
            due = [_agent(row) for row in db.execute(_DUE, (now, limit)).fetchall()]
            db.executemany(_TAKE, [(until, agent.tenant, agent.name) for agent in due])
            return lambda: due

        return await self._file.commits.submit(job)

    async def update(self, agent: RegisteredAgent) -> bool:
        def job(db: sqlite3.Connection) -> Finish[bool]:
            values = (agent.due, agent.body, agent.tenant, agent.name, agent.url)
            changed = db.execute(_UPDATE, values).rowcount > 0
            return lambda: changed

        return await self._file.commits.submit(job)

    async def put_texts(self, texts: Mapping[str, SearchText], now: float) -> None:
        rows = {digest: split_members(text) for digest, text in texts.items()}

        def job(db: sqlite3.Connection) -> Finish[None]:
            for digest, words in rows.items():
                if not db.execute(_USE, (now, digest)).rowcount:
                    id = db.execute(_ADD, (digest, now)).lastrowid
                    db.execute(_ADD_WORDS, (id, *words))
            return NOTHING

        await self._file.commits.submit(job)

    async def search(self, query: str, among: Sequence[str], *, limit: int) -> Sequence[tuple[str, float]]:
        words = split_query(query)
        if not words or not among:
            return ()
        values: list[object] = []
        for n, word in enumerate(words):
            for column, weight in SEARCH_WEIGHTS.items():
                values += (n, weight, f'{column} : "{word}"{"*" if finds_longer_words(word) else ""}')
        hits = " union all ".join([_HITS] * (len(words) * len(SEARCH_WEIGHTS)))
        sql = _SEARCH.format(hits=hits)
        found = (*values, json.encode(list(among)).decode(), limit)
        rows = await self._file.reads.in_thread(lambda db: db.execute(sql, found).fetchall())
        return [(digest, score / len(words)) for digest, score in rows]

    async def forget_texts(self, before: float) -> int:
        def job(db: sqlite3.Connection) -> Finish[int]:
            old = db.execute(_OLD, (before,)).fetchall()
            for statement in _FORGET:
                db.executemany(statement, old)
            return lambda: len(old)

        return await self._file.commits.submit(job)


def _agent(row: Sequence[object]) -> RegisteredAgent:
    tenant, name, url, due, body = row
    return RegisteredAgent(tenant=tenant, name=name, url=url, due=due, body=body)  # type: ignore[arg-type]
