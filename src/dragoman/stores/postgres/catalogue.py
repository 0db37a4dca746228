"""The catalogue in a PostgreSQL database: registered agents, and text search.

Scores are those of every store: each word counts by the heaviest label that has it (A is the name, B tags, C skills, D the rest).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.engine.protocols import SEARCH_WEIGHTS, RegisteredAgent, SearchText
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.text import is_storable
from dragoman.stores.search_words import finds_longer_words, split_members, split_query

_COLUMNS = "select tenant, name, url, due, body from dragoman.catalogue_agents"
_ALL = f"{_COLUMNS} order by name, tenant"
_LOCK_TABLE = "lock table dragoman.catalogue_agents in share row exclusive mode"
_REGISTER = """
insert into dragoman.catalogue_agents (tenant, name, url, due, body) select $1, $2, $3, $4, $5
where (select count(*) from dragoman.catalogue_agents) < $6 on conflict do nothing returning true
"""
_UNREGISTER = "delete from dragoman.catalogue_agents where tenant = $1 and name = $2 returning true"
_TAKE = """
update dragoman.catalogue_agents as a set due = $2 from (
    select tenant, name, due from dragoman.catalogue_agents where due <= $1 order by due limit $3 for update skip locked
) as waiting where a.tenant = waiting.tenant and a.name = waiting.name
returning a.tenant, a.name, a.url, waiting.due, a.body
"""
_UPDATE = """
update dragoman.catalogue_agents set due = $4, body = $5 where tenant = $1 and name = $2 and url = $3 returning true
"""
_PUT = """
insert into dragoman.catalogue_texts (digest, used, words)
select digest, $1, setweight(to_tsvector('english', name), 'A') || setweight(to_tsvector('english', tags), 'B')
|| setweight(to_tsvector('english', skills), 'C') || setweight(to_tsvector('english', about), 'D')
from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) as n(digest, name, tags, skills, about)
order by digest on conflict (digest) do update set used = excluded.used
"""
_LABELS = dict(zip("ABCD", SEARCH_WEIGHTS.values(), strict=True))
_QUERIES = ", ".join(f"to_tsquery('english', word || '{label}') as {label}" for label in _LABELS)
_CASES = " ".join(f"when words @@ {label} then {weight}" for label, weight in _LABELS.items())
_SEARCH = f"""
with asked as materialized (select {_QUERIES} from unnest($2::text[]) as given(word)),
matching as materialized (
    select digest, words from dragoman.catalogue_texts where digest = any($1::text[]) and words @@ to_tsquery('english', $3)
)
select digest, sum(case {_CASES} else 0 end)::double precision as score from matching cross join asked
group by digest order by score desc, digest limit $4
"""
_FORGET = """
delete from dragoman.catalogue_texts where digest in
(select digest from dragoman.catalogue_texts where used < $1 limit 1000) returning digest
"""


class PostgresCatalogue:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def registered(self) -> Sequence[RegisteredAgent]:
        rows = await self._database.read(lambda db: db.fetch(_ALL))
        return [_agent(row) for row in rows]

    async def register(self, agent: RegisteredAgent, *, limit: int) -> bool:
        if not is_storable(agent.tenant, agent.name, agent.url):
            return False

        async def work(db: Connection) -> bool:
            await db.execute(_LOCK_TABLE)  # without it, two nodes could both add the last agent
            return bool(await db.fetchval(_REGISTER, *_values(agent), agent.due, agent.body, limit))

        return await self._database.write(work)

    async def unregister(self, tenant: str, name: str) -> bool:
        if not is_storable(tenant, name):
            return False
        return bool(await self._database.write(lambda db: db.fetchval(_UNREGISTER, tenant, name)))

    async def take_due(self, now: float, until: float, *, limit: int) -> Sequence[RegisteredAgent]:
        taken = await self._database.write(lambda db: db.fetch(_TAKE, now, until, limit))
        return sorted(map(_agent, taken), key=lambda agent: agent.due)

    async def update(self, agent: RegisteredAgent) -> bool:
        values = (*_values(agent), agent.due, agent.body)
        return bool(await self._database.write(lambda db: db.fetchval(_UPDATE, *values)))

    async def put_texts(self, texts: Mapping[str, SearchText], now: float) -> None:
        rows = [(digest, *split_members(text)) for digest, text in texts.items()]
        columns = [list(column) for column in zip(*rows, strict=True)]
        if columns:
            await self._database.write(lambda db: db.execute(_PUT, now, *columns))

    async def search(self, query: str, among: Sequence[str], *, limit: int) -> Sequence[tuple[str, float]]:
        words = split_query(query)
        if not words or not among:
            return ()
        asked = [f"'{word}':{'*' if finds_longer_words(word) else ''}" for word in words]
        any_word = " | ".join(each.removesuffix(":") for each in asked)
        values = (list(among), asked, any_word, limit)
        rows = await self._database.read(lambda db: db.fetch(_SEARCH, *values))
        return [(digest, score / len(words)) for digest, score in rows]

    async def forget_texts(self, before: float) -> int:
        return len(await self._database.write(lambda db: db.fetch(_FORGET, before)))


def _values(agent: RegisteredAgent) -> tuple[str, str, str]:
    return agent.tenant, agent.name, agent.url


def _agent(row: Sequence[Any]) -> RegisteredAgent:
    tenant, name, url, due, body = row
    return RegisteredAgent(tenant=tenant, name=name, url=url, due=due, body=bytes(body))
