"""When a schedule runs: a phrase or a cron expression, in a time zone.

The zone is named at the end of the phrase (`every day at 09:00 in Europe/Berlin`) or beside it; otherwise it is the hub's. Times of day
are local times of the zone. If the clock skips a time, the schedule runs later, by as much as the clock skips; of a time that comes
twice, the first counts. Minutes and hours from now are elapsed time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.schedules import cron

_MAX_YEAR = 9000
_LATEST = int(datetime(_MAX_YEAR, 1, 1, tzinfo=UTC).timestamp())
NOT_ZONES = ("Factory", "localtime", "posix", "posixrules", "right")
"""Files and folders beside the zones that are not zones: rules of one machine, placeholders, and zones with leap seconds."""
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
        if _ZONE.fullmatch(name) is None or name.partition("/")[0] in NOT_ZONES:
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
    """How it repeats: `{"every": "minute", "n": 15}`, `{"every": "week", "day": "mon", "at": "09:00"}`, `{"cron": "0 9 * * *"}`; with
    `tz`, if the zone has a name. Empty: it does not."""
    normalized: str


def parse(phrase: str, now: float, *, timezone: str = "", default: str = "") -> RunTimes:
    """Read a phrase. `timezone`: its zone, if it names none itself; `default`: that of the hub. Raises `InvalidParams`."""
    words, named = split_zone(phrase)
    if named and timezone and named != timezone:
        why = f"the schedule is in {named[:80]}, and the time zone is {timezone[:80]}"
        raise InvalidParams(why, fields=(("timezone", why),))
    name = named or timezone or default
    zone = find_zone(name)
    if cron.is_cron(words):
        normalized = cron.parse(words).text
        recur: dict[str, Any] = {"cron": normalized}
        first = next_time(recur, now, zone)
    else:
        first, recur, normalized = _parse_phrase(words, now, zone)
    if not 0 <= first < _LATEST:
        why = "this is too far away"
        raise InvalidParams(why, fields=(("schedule", why),))
    if name:
        recur, normalized = ({**recur, "tz": name} if recur else recur), f"{normalized} in {name}"
    kind = RECURRING if recur else ONCE
    return RunTimes(kind=kind, first=first, recur=recur, normalized=normalized)


def next_time(recur: dict[str, Any], now: float, zone: tzinfo) -> int:
    """The next time after `now`."""
    if (text := recur.get("cron")) is None:
        if (every := recur["every"]) in ("minute", "hour"):
            return int(now + recur.get("n", 1) * _UNITS[every].total_seconds())
        hour, _, minute = recur["at"].partition(":")
        text = f"{minute} {hour} * * {recur.get('day', '*')}"
    found = cron.parse(text).next_after(datetime.fromtimestamp(now, UTC), zone)
    assert found is not None, "parse has found one, and there is one every few years"
    return int(found.timestamp())


def format_time(at: int, zone: tzinfo) -> str:
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M %Z}"


def _to_seconds(local: datetime, zone: tzinfo, now: float) -> int:
    """The moment of a local time. Of one that comes twice, the first counts, unless it is over."""
    if local.year >= _MAX_YEAR:
        return _LATEST
    first, second = (int(local.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    return second if first <= now < second else first


# -- phrases ------------------------------------------------------------------

ACCEPTED = (
    "in N minutes|hours|days|weeks, at HH:MM, tomorrow [at HH:MM], on YYYY-MM-DD [at HH:MM], every hour, "
    "every N minutes|hours, every day [at HH:MM], every week [on DAY] [at HH:MM], every DAY [at HH:MM], or a cron expression "
    "(0 9 * * mon-fri), and perhaps a time zone after it (in Europe/Berlin)"
)
ONCE, RECURRING = "once", "recurring"
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_AT = r"(?: at (?P<at>\d{1,2}:\d{2}))?"
_DAY = r"(?P<day>mon|tue|wed|thu|fri|sat|sun)(?:day|sday|nesday|rsday|urday)?"
_FORMS = {
    "in": re.compile(r"in (?P<n>\d{1,5}) (?P<unit>minute|hour|day|week)s?"),
    "at": re.compile(r"at (?P<at>\d{1,2}:\d{2})"),
    "tomorrow": re.compile(rf"tomorrow{_AT}"),
    "on": re.compile(rf"on (?P<date>\d{{4}}-\d{{2}}-\d{{2}}){_AT}"),
    "hour": re.compile(r"every hour|hourly"),
    "every": re.compile(r"every (?P<n>\d{1,5}) (?P<unit>minute|hour)s?"),
    "day": re.compile(rf"(?:every day|daily){_AT}"),
    "week": re.compile(rf"(?:every week|weekly)(?: on {_DAY})?{_AT}"),
    "weekday": re.compile(rf"every {_DAY}{_AT}"),
}
_DEFAULT_TIME = "09:00"
"""The time of a day that is named without one."""


def _parse_phrase(phrase: str, now: float, zone: tzinfo) -> tuple[int, dict[str, Any], str]:
    """The first time, how it repeats, and the normal form. Raises `InvalidParams` with the accepted forms."""
    words, local = " ".join(phrase.lower().split()), datetime.fromtimestamp(now, zone).replace(tzinfo=None)
    for form, pattern in _FORMS.items():
        if (match := pattern.fullmatch(words)) is not None:
            groups = {name: value for name, value in match.groupdict().items() if value}
            try:
                if form in _RECURRING_FORMS:
                    recur, text = _parse_recurring(form, groups, local)
                    return next_time(recur, now, zone), recur, text
                first, text = _parse_once(form, groups, local)
                if groups.get("unit") in ("minute", "hour"):  # elapsed time, also if the clock changes
                    return int(now + (first - local).total_seconds()), {}, text
                return _to_seconds(first, zone, now), {}, text
            except (ValueError, OverflowError):
                break  # such as 31 June, or 25:00
    raise _invalid(f"{phrase[:80]!r} is not a known time")


_UNITS = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_RECURRING_FORMS = ("hour", "every", "day", "week", "weekday")


def _parse_once(form: str, groups: dict[str, str], now: datetime) -> tuple[datetime, str]:
    if form == "in":
        n = int(groups["n"])
        if not n:
            raise _invalid("in 0 is now")
        return now + n * _UNITS[groups["unit"]], f"in {n} {groups['unit']}{'s' if n > 1 else ''}"
    if form == "at":
        first = _at_time(now, groups["at"])
        return first + timedelta(days=first <= now), f"at {first:%H:%M}"
    if form == "tomorrow":
        first = now + timedelta(days=1)
        first = _at_time(first, groups["at"]) if "at" in groups else first
        return first, f"tomorrow at {first:%H:%M}"
    first = _at_time(datetime.fromisoformat(groups["date"]), groups.get("at", _DEFAULT_TIME))
    text = f"on {first:%Y-%m-%d at %H:%M}"
    if first <= now:
        raise _invalid(f"{text} is over")
    return first, text


def _parse_recurring(form: str, groups: dict[str, str], now: datetime) -> tuple[dict[str, Any], str]:
    if form == "hour":
        return {"every": "hour"}, "every hour"
    if form == "every":
        n, unit = int(groups["n"]), groups["unit"]
        if not n:
            raise _invalid("every 0 is never")
        return {"every": unit, "n": n}, f"every {n} {unit}{'s' if n > 1 else ''}"
    at = f"{_at_time(now, groups['at']) if 'at' in groups else now:%H:%M}"
    if form == "day":
        return {"every": "day", "at": at}, f"every day at {at}"
    day = groups.get("day", _DAYS[now.weekday()])
    return {"every": "week", "day": day, "at": at}, f"every {day.title()} at {at}"


def _at_time(day: datetime, at: str) -> datetime:
    hour, _, minute = at.partition(":")
    return day.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)


def _invalid(why: str) -> InvalidParams:
    return InvalidParams(f"{why}; say {ACCEPTED}", fields=(("schedule", why),))
