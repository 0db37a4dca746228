"""When a schedule runs: a phrase or a cron expression, in a time zone.

The zone is named at the end of the phrase (`every day at 09:00 in Europe/Berlin`) or beside it; otherwise it is the hub's. Times of
day are those of the zone's clock: one that the clock skips comes as much later as it skips, and of one that comes twice the first
counts. Minutes and hours from now are real time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.schedules import cron, natural_dates
from dragoman.hub.schedules.natural_dates import RECURRING

_MAX_YEAR = 9000
_LATEST = int(datetime(_MAX_YEAR, 1, 1, tzinfo=UTC).timestamp())
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}")


class LocalZone(tzinfo):
    """The clock of this machine, with its changes."""

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        return None if at is None else at.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, at: datetime | None) -> timedelta | None:
        return None

    def tzname(self, at: datetime | None) -> str | None:
        return None if at is None else at.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, at: datetime) -> datetime:
        return datetime.fromtimestamp(at.replace(tzinfo=UTC).timestamp()).replace(tzinfo=self)


def find_zone(name: str) -> tzinfo:
    """The zone of a name such as `Europe/Berlin`; that of this machine if it is empty. Raises `InvalidParams`."""
    if not name:
        return LocalZone()
    try:
        if _ZONE.fullmatch(name) is None:
            raise ValueError
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        why = f"{name[:80]!r} is not a known time zone"
        raise InvalidParams(
            f"{why}; say one such as Europe/Berlin or UTC", fields=(("timezone", why),)
        ) from None


def split_zone(phrase: str) -> tuple[str, str]:
    """A phrase without the zone at its end, and the name of the zone."""
    rest, found, name = phrase.rstrip().rpartition(" in ")
    return (rest.rstrip(), name.strip()) if found and " " not in name.strip() else (phrase.strip(), "")


class RunTimes(Struct, frozen=True, kw_only=True):
    kind: str
    first: int
    """In seconds since 1970, as all times here."""
    recur: dict[str, Any] = {}
    """How it repeats: as in `natural_dates.When`, or `{"cron": "0 9 * * *"}`; with `tz`, if the zone has a name."""
    normalized: str


def parse(phrase: str, now: float, *, timezone: str = "", default: str = "") -> RunTimes:
    """Read a phrase. `timezone`: its zone, if it names none itself; `default`: that of the hub. Raises `InvalidParams`."""
    words, named = split_zone(phrase)
    if named and timezone and named != timezone:
        why = f"the schedule is in {named[:80]}, and the time zone is {timezone[:80]}"
        raise InvalidParams(why, fields=(("timezone", why),))
    name = named or timezone or default
    zone = find_zone(name)
    recur: dict[str, Any]
    if cron.is_cron(words):
        expression = cron.parse(words)
        recur, kind, normalized = {"cron": expression.text}, RECURRING, expression.text
        first = next_time(recur, now, zone)
    else:
        local = datetime.fromtimestamp(now, zone).replace(tzinfo=None)
        when = natural_dates.parse(words, local)
        recur, kind, normalized = when.recur, when.kind, when.normalized
        if when.recur:
            first = next_time(when.recur, now, zone)
        elif when.seconds:
            first = int(now) + when.seconds
        else:
            first = _instant(when.first, zone) if when.first.year < _MAX_YEAR else _LATEST
    if not 0 <= first < _LATEST:
        why = "this is too far away"
        raise InvalidParams(why, fields=(("schedule", why),))
    if name:
        recur, normalized = ({**recur, "tz": name} if recur else recur), f"{normalized} in {name}"
    return RunTimes(kind=kind, first=first, recur=recur, normalized=normalized)


def next_time(recur: dict[str, Any], now: float, zone: tzinfo) -> int:
    """The next time after `now`."""
    if (text := recur.get("cron")) is not None:
        found = cron.parse(text).next_after(datetime.fromtimestamp(now, UTC), zone)
        assert found is not None, "parse has found one, and there is one every few years"
        return int(found.timestamp())
    if recur["every"] in ("minute", "hour"):
        times: int = recur.get("n", 1)
        return int(now) + times * (60 if recur["every"] == "minute" else 3600)
    local = datetime.fromtimestamp(now, zone).replace(tzinfo=None)
    at = natural_dates.next_time(recur, local)
    found_at = _instant(at, zone)
    if found_at <= now:  # the clock was set back: the same time again
        found_at = _instant(natural_dates.next_time(recur, at), zone)
    return found_at


def format_time(at: int, zone: tzinfo) -> str:
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M %Z}"


def _instant(local: datetime, zone: tzinfo) -> int:
    return int(local.replace(tzinfo=zone, fold=0).timestamp())
