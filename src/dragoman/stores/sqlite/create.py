"""How a task gets into a SQLite file.

Who waits for its end anyway need not wait for its beginning: the task may begin while it is on its way to disk. If it
has ended by the time it gets there, it is one row and one entry of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from sqlite3 import Connection, IntegrityError

from dragoman.engine.protocols import Lease, TaskExists
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Mail, Record, Snapshot, pack
from dragoman.engine.transition import Create, Settle, TaskRow, decide
from dragoman.model.ops import Scope
from dragoman.stores.pages import visible
from dragoman.stores.sqlite.commits import Finish
from dragoman.stores.sqlite.file import SqliteFile
from dragoman.stores.sqlite.push_queue import SqlitePushQueue
from dragoman.stores.sqlite.reads import place

_CREATE = """
insert into tasks (scope, id, context, reply, size, seq, mail, updated, state, done, ready, node, fence, attempt)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SCOPE = "select scope from scopes where tenant = ? and agent = ? and owner = ?"
_NEW_SCOPE = "insert into scopes (tenant, agent, owner) values (?, ?, ?)"


class Opening(Lease, kw_only=True, gc=True):
    """A task on its way to disk, and the lease to run it meanwhile."""

    file: SqliteFile
    snapshot: Snapshot
    mail: Record
    node: str
    webhook: StoredPushConfig | None
    webhooks: SqlitePushQueue
    end: Sequence[Record] = ()
    open: bool = False
    """Its end can still be stored together with its beginning."""
    stored: asyncio.Future[int] | None = None
    """The last record, when it is on disk."""

    @property
    def lost(self) -> bool:
        """It could not be stored: there is nothing to write to, also while nobody can look whether there is."""
        stored = self.stored
        return stored is not None and stored.done() and (stored.cancelled() or stored.exception() is not None)

    def settle(self, records: Sequence[Record], mail: int) -> asyncio.Future[int] | None:
        """End it in the row that it begins with. None if it is too late for that."""
        if not self.open or mail != 1 or not records:
            return None
        self.open, self.end = False, records
        return self.stored

    def store(self, db: Connection) -> Finish[int]:
        """The job that does it."""
        self.open = False
        file, mail, records = self.file, self.mail.body, [self.mail, *self.end]
        assert isinstance(mail, Mail)
        scope = file.reads.scope(self.scope) or new_scope(db, self.scope)
        row = decide(TaskRow(), Create(self.mail, mail.at, self.node)).row
        if self.end:
            row = decide(row, Settle(self.task, row.fence, self.end, 1)).row
        body = pack(records)
        task = (scope, self.task, self.snapshot.context_id, mail.reply, len(body))
        lease = (row.ready, row.node or None, row.fence, row.attempt)
        try:
            key = db.execute(
                _CREATE, (*task, row.seq, row.mail, row.updated, row.state.value, row.done, *lease)
            ).lastrowid
        except IntegrityError:
            raise TaskExists(self.task) from None
        assert key is not None
        self.key = key
        file.commits.records.append((place(key, len(records)), body))
        if visible(row.state.value, mail.reply):
            file.commits.count(scope, row.state.value, 1)
        if self.webhook is not None:
            self.webhooks.add(db, key, self.webhook, cursor=1, last=1)
        return partial(self._kept, records)

    def _kept(self, records: Sequence[Record]) -> int:
        for record in records:
            self.snapshot.apply(record)
        self.file.reads.keep(self.key, self.snapshot)
        return len(records)


def new_scope(db: Connection, scope: Scope) -> int:
    names = (scope.tenant, scope.agent, scope.owner)
    row = db.execute(_SCOPE, names).fetchone()  # an earlier job of this batch may have made it
    number = row[0] if row else db.execute(_NEW_SCOPE, names).lastrowid
    assert isinstance(number, int)
    return number
