"""Where a PostgreSQL database is, and how it is reached."""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

Connection: TypeAlias = asyncpg.Connection
PostgresError = asyncpg.PostgresError

GONE = (
    OSError,  # a timeout is one, too
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The database is away, or is another one now. It may be back in a moment."""

DAMAGED = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)
"""What is stored cannot be read, now or later."""
CONFUSED = (asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the library may say of a connection that broke at the wrong moment."""

REACHED = 5.0
"""Seconds in which a database that is there lets us in."""
LONGEST = 30.0
"""Seconds after which nobody believes that an answer will come."""
HOUR = 3600.0
"""And for what may take its time."""

_CACHE = "statement_cache_size"
_SAY = "a database is postgresql://host:5432/database; write signs like @, / and # in a password as %40, %2F and %23"


class PostgresAddress:
    """A url of a database, as asyncpg takes it, and our own words in it.

    `?statement_cache_size=0` is for a pgbouncer that gives each transaction another connection: nothing is prepared then.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            sound = all(map(_sound, parts.netloc.rpartition("@")[2].split(",")))
        except ValueError:  # which may show the url, and a password in it
            raise ValueError(_SAY) from None
        if not sound or parts.fragment:
            raise ValueError(_SAY)
        words = parse_qsl(parts.query, keep_blank_values=True)
        ours = dict(words).get(_CACHE, "100")
        if not ours.isdecimal():
            raise ValueError(f"{_CACHE} is a number")
        self.cache = int(ours)
        rest = [(name, value) for name, value in words if name != _CACHE]
        self.dsn = urlunsplit(parts._replace(query=urlencode(rest, safe="/,:")))

    async def connect(self) -> Connection:
        try:
            return await asyncpg.connect(
                self.dsn,
                statement_cache_size=self.cache,
                timeout=REACHED,
                command_timeout=LONGEST,
                server_settings={"application_name": "dragoman"},  # a pooler takes no other
            )
        except asyncpg.InterfaceError:
            raise
        except (ValueError, OverflowError) as error:  # of words in the url, or in the environment
            raise asyncpg.ClientConfigurationError(f"{_SAY} ({type(error).__name__})") from None


def _sound(host: str) -> bool:
    """Whether a server can be there. It may be named elsewhere: in `?host=`, or in the environment."""
    port = urlsplit(f"//{host}").port  # raises ValueError
    return port != 0
