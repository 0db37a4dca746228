"""Runs a client's checks one after the other, at one URL or at several, and prints a JSON line for each."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable


class Absent(Exception):
    """The library, or the version of the protocol, does not have this."""


def expect(what: object, wanted: object) -> None:
    if what != wanted:
        raise AssertionError(f"expected {wanted!r}, got {what!r}")


async def run(checks: list[Callable[[], Awaitable[str | None]]], *, timeout: float = 10) -> None:
    """The first argument of the program is a URL, or several with commas. The checks find each in its `URL`."""
    program = sys.modules["__main__"]
    failed = False
    for url in sys.argv[1].split(","):
        program.URL = url
        for check in checks:
            name, ok, note = check.__name__.rstrip("_"), True, ""
            try:
                async with asyncio.timeout(timeout):
                    note = await check() or ""
            except Absent as why:
                ok, note = None, str(why)
            except TimeoutError:
                ok, note = False, f"nothing after {timeout:g} s"
            except Exception as error:
                ok, note = False, f"{type(error).__name__}: {error}"
            failed |= ok is False
            print(json.dumps({"url": url, "check": name, "ok": ok, "note": note[:500]}), flush=True)
    sys.exit(1 if failed else 0)
