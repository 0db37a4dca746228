"""The URL of a PostgreSQL database, the connection to it, and the errors of a connection."""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

Connection: TypeAlias = asyncpg.Connection
PostgresError = asyncpg.PostgresError

UNAVAILABLE_ERRORS = (
    OSError,  # a timeout is one, too
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The database does not answer, or is another server now. It may be back in a moment."""

CORRUPTION_ERRORS = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)
"""Stored data is damaged: it cannot be read, now or later."""
BROKEN_CONNECTION_ERRORS = (asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What asyncpg may raise for a connection that broke at the wrong moment."""

CONNECT_SECONDS = 5.0
"""How long a connection may take to open."""
COMMAND_SECONDS = 30.0
"""How long a statement may take."""
LONG_COMMAND_SECONDS = 3600.0
"""How long a statement may take that changes many rows: a migration, a purge, a copy."""

_CACHE_OPTION = "statement_cache_size"
"""Our own option in a URL."""
_URL_HELP = "a database is postgresql://host:5432/database; write signs like @, / and # in a password as %40, %2F and %23"


class PostgresAddress:
    """The URL of a database: `dsn` as asyncpg takes it, without our own option, and its value (`cache`).

    `?statement_cache_size=0` is for a pgbouncer that gives each transaction another connection: nothing is prepared then.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            valid = all(map(_is_valid_host, parts.netloc.rpartition("@")[2].split(",")))
        except ValueError:  # its text may show the URL, with a password in it
            raise ValueError(_URL_HELP) from None
        if not valid or parts.fragment:
            raise ValueError(_URL_HELP)
        options = parse_qsl(parts.query, keep_blank_values=True)
        cache = dict(options).get(_CACHE_OPTION, "100")
        if not cache.isdecimal():
            raise ValueError(f"{_CACHE_OPTION} is a number")
        self.cache = int(cache)
        rest = [(name, value) for name, value in options if name != _CACHE_OPTION]
        self.dsn = urlunsplit(parts._replace(query=urlencode(rest, safe="/,:")))

    async def connect(self) -> Connection:
        try:
            return await asyncpg.connect(
                self.dsn,
                statement_cache_size=self.cache,
                timeout=CONNECT_SECONDS,
                command_timeout=COMMAND_SECONDS,
                server_settings={"application_name": "dragoman"},  # poolers accept no other setting
            )
        except asyncpg.InterfaceError:
            raise
        except (ValueError, OverflowError) as error:  # an option in the URL or in the environment is wrong
            raise asyncpg.ClientConfigurationError(f"{_URL_HELP} ({type(error).__name__})") from None


def _is_valid_host(host: str) -> bool:
    """True unless the port is 0. The host may be empty: `?host=` or the environment names it. Raises `ValueError`."""
    return urlsplit(f"//{host}").port != 0
