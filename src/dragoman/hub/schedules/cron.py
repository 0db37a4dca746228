"""Cron expressions: minute, hour, day of the month, month, day of the week.

A field is `*`, a number, a name (`jan`, `mon`), a range `1-5`, a step `*/15` or `8-18/2`, or several of them with commas between
them. Sunday is 0 or 7, also as the end of a range. If neither day field begins with `*`, a day has to match one of them; otherwise both.

When the clock changes (daylight saving time), an expression whose hours begin with `*` follows it: it does not run at times that the
clock skips, and runs twice at times that come twice. Any other expression runs exactly once: a skipped time runs later, by as much as the
clock skips, and of a time that comes twice only the first runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from msgspec import Struct

from dragoman.errors import InvalidParams

MAX_CHARACTERS = 120
MAX_DAYS = 366 * 9
"""How many days ahead the next time is searched. The next 29 February may be eight years away."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: n for n, name in enumerate(_MONTHS, 1)}),
    ("day of the week", 0, 7, {name: n for n, name in enumerate(_DAYS)}),
)
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Cron(Struct, frozen=True, kw_only=True):
    text: str
    """The expression in its normal form."""
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """As in `date.isoweekday`, with 0 for Sunday."""
    any_day: bool
    """One of the day fields begins with `*`: a day has to match both."""
    any_hour: bool
    """The hours begin with `*`."""

    def next_after(self, now: datetime, zone: tzinfo) -> datetime | None:
        """The first time after `now` (aware), in UTC; None if there is none within `MAX_DAYS`."""
        day = (now.astimezone(zone) - timedelta(days=1)).date()  # a skipped time may come a day later
        for _ in range(MAX_DAYS):
            if self._matches_day(day):
                later = [at for at in self._times(day, zone) if at > now]
                if later:
                    return min(later)
            if day >= date.max - timedelta(days=1):
                return None
            day += timedelta(days=1)
        return None

    def _matches_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month and of_week if self.any_day else of_month or of_week

    def _times(self, day: date, zone: tzinfo) -> Iterator[datetime]:
        for hour in self.hours:
            for minute in self.minutes:
                local = datetime.combine(day, time(hour, minute), zone)
                first = local.astimezone(UTC)
                if not self.any_hour:
                    yield first
                    continue
                if first.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
                    yield first  # the clock does not skip it
                    yield local.replace(fold=1).astimezone(UTC)


def is_cron(phrase: str) -> bool:
    """True if a phrase looks like a cron expression: about five fields, or `cron` before them, or a macro."""
    words = phrase.split(maxsplit=8)
    if not words or words[0].lower() == "cron" or words[0].startswith("@"):
        return bool(words)
    return 4 <= len(words) <= 7 and all(_looks_like_a_field(word) for word in words[:2])


def _looks_like_a_field(word: str) -> bool:
    return word[:1] in "*0123456789"


def parse(phrase: str) -> Cron:
    """Raises `InvalidParams`."""
    if len(phrase) > MAX_CHARACTERS:
        raise _invalid(f"a cron expression has at most {MAX_CHARACTERS} characters")
    words = phrase.lower().split()
    if words[:1] == ["cron"]:
        words = words[1:]
    if len(words) == 1 and words[0] in _MACROS:
        words = _MACROS[words[0]].split()
    if len(words) != len(_FIELDS):
        raise _invalid(
            f"a cron expression has five fields (minute hour day month weekday), and this one has {len(words)}"
        )
    minutes, hours, days, months, weekdays = (
        _parse_field(word, *field) for word, field in zip(words, _FIELDS, strict=True)
    )
    cron = Cron(
        text=" ".join(words),
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(day % 7 for day in weekdays),
        any_day=words[2].startswith("*") or words[4].startswith("*"),
        any_hour=words[1].startswith("*"),
    )
    if cron.next_after(datetime(2000, 1, 1, tzinfo=UTC), UTC) is None:
        raise _invalid("there is no such day in any of these months")
    return cron


def _parse_field(word: str, name: str, least: int, most: int, names: dict[str, int]) -> set[int]:
    found: set[int] = set()
    for item in word.split(","):
        bounds, slash, step_text = item.partition("/")
        step = _parse_number(step_text, name, 1, most, {}) if slash else 1
        if bounds == "*":
            first, last = least, most
        else:
            low, dash, high = bounds.partition("-")
            first = _parse_number(low, name, least, most, names)
            last = _parse_number(high, name, least, most, names) if dash else most if slash else first
            if dash and first and not last and most == 7:
                last = 7  # until Sunday
            if last < first:
                raise _invalid(f"the {name} {bounds} ends before it begins")
        found.update(range(first, last + 1, step))
    return found


def _parse_number(text: str, name: str, least: int, most: int, names: dict[str, int]) -> int:
    value = names.get(text, -1)
    if value < 0 and text.isascii() and text.isdigit() and len(text) <= 2:
        value = int(text)
    if not least <= value <= most:
        raise _invalid(f"the {name} {text[:20]!r} is not a number from {least} to {most}")
    return value


def _invalid(why: str) -> InvalidParams:
    return InvalidParams(
        f"{why}; a cron expression is, for example, 0 9 * * mon-fri", fields=(("schedule", why),)
    )
