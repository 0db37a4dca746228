"""Parse times such as `in 30 minutes`, `tomorrow at 09:00`, `every monday at 09:00`. They are times of a clock, in no zone."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from dragoman.errors import InvalidParams

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


class When(Struct, frozen=True, kw_only=True):
    kind: str
    first: datetime
    recur: dict[str, Any] = {}
    """How it repeats: `{"every": "minute", "n": 15}`, `{"every": "week", "day": "mon", "at": "09:00"}`."""
    seconds: int = 0
    """So many seconds from now, whatever the clock says; 0: at `first`."""
    normalized: str
    """The phrase in its normal form."""


def parse(phrase: str, now: datetime) -> When:
    """Raises `InvalidParams` with the accepted forms."""
    words = " ".join(phrase.lower().split())
    for form, pattern in _FORMS.items():
        if (match := pattern.fullmatch(words)) is not None:
            match_groups = {name: value for name, value in match.groupdict().items() if value}
            try:
                return (
                    _recurring(form, match_groups, now) if form in _EVERY else _once(form, match_groups, now)
                )
            except (ValueError, OverflowError):
                break  # the 31st of a month that has thirty days, or 25 o'clock
    raise _invalid(f"{phrase[:80]!r} is not a known time")


def next_time(recur: dict[str, Any], now: datetime) -> datetime:
    """The next time after `now`."""
    every = recur["every"]
    if every in ("minute", "hour"):
        times: int = recur.get("n", 1)
        return now + times * _UNITS[every]
    time = _on(now, recur["at"])
    if every == "week":
        time += timedelta(days=(_DAYS.index(recur["day"]) - now.weekday()) % 7)
    step = timedelta(days=7 if every == "week" else 1)
    return time if time > now else time + step


_UNITS = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_EVERY = ("hour", "every", "day", "week", "weekday")


def _once(form: str, match_groups: dict[str, str], now: datetime) -> When:
    seconds = 0
    if form == "in":
        n = int(match_groups["n"])
        if not n:
            raise _invalid("in 0 is now")
        first, text = (
            now + n * _UNITS[match_groups["unit"]],
            f"in {n} {match_groups['unit']}{'s' if n > 1 else ''}",
        )
        if match_groups["unit"] in ("minute", "hour"):
            seconds = int(n * _UNITS[match_groups["unit"]].total_seconds())
    elif form == "at":
        first, text = _on(now, match_groups["at"]), f"at {_clock(match_groups['at'])}"
        first += timedelta(days=first <= now)
    elif form == "tomorrow":
        first = now + timedelta(days=1)
        first = _on(first, match_groups["at"]) if "at" in match_groups else first
        text = f"tomorrow at {first:%H:%M}"
    else:
        first = _on(datetime.fromisoformat(match_groups["date"]), match_groups.get("at", _DEFAULT_TIME))
        text = f"on {first:%Y-%m-%d at %H:%M}"
        if first <= now:
            raise _invalid(f"{text} is over")
    return When(kind=ONCE, first=first, seconds=seconds, normalized=text)


def _recurring(form: str, match_groups: dict[str, str], now: datetime) -> When:
    at = _clock(match_groups["at"]) if "at" in match_groups else f"{now:%H:%M}"
    recur: dict[str, Any]
    if form == "hour":
        recur, text = {"every": "hour"}, "every hour"
    elif form == "every":
        n = int(match_groups["n"])
        if not n:
            raise _invalid("every 0 is never")
        recur, text = (
            {"every": match_groups["unit"], "n": n},
            f"every {n} {match_groups['unit']}{'s' if n > 1 else ''}",
        )
    elif form == "day":
        recur, text = {"every": "day", "at": at}, f"every day at {at}"
    else:
        day = match_groups.get("day", _DAYS[now.weekday()])
        recur, text = {"every": "week", "day": day, "at": at}, f"every {day.title()} at {at}"
    return When(kind=RECURRING, first=next_time(recur, now), recur=recur, normalized=text)


def _on(day: datetime, at: str) -> datetime:
    hour, _, minute = at.partition(":")
    return day.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)


def _clock(at: str) -> str:
    return f"{_on(datetime(2000, 1, 1), at):%H:%M}"


def _invalid(why: str) -> InvalidParams:
    return InvalidParams(f"{why}; say {ACCEPTED}", fields=(("schedule", why),))
