"""When a schedule runs: cron expressions, time zones, and clocks that change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import InvalidParams
from dragoman.hub.schedules import cron, run_times
from dragoman.hub.settings import InvalidSetting, load_settings
from tests.hub.house import house

BERLIN = ZoneInfo("Europe/Berlin")
"""In 2030 its clocks skip 02:00 to 03:00 on 31 March, and have 02:00 to 03:00 twice on 27 October."""


def seconds(text: str) -> float:
    """`2030-03-30 12:00 Europe/Berlin`, or in UTC without a zone."""
    day, clock, *zone = text.split()
    local = datetime.fromisoformat(f"{day} {clock}")
    return local.replace(tzinfo=ZoneInfo(zone[0]) if zone else UTC).timestamp()


def runs(phrase: str, now: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    """The next runs, as times of the zone with its offset."""
    at, out = seconds(now), []
    for _ in range(count):
        when = run_times.parse(phrase, at, timezone=zone)
        at = when.first
        out.append(f"{datetime.fromtimestamp(at, ZoneInfo(zone)):%m-%d %H:%M%z}")
    return out


@pytest.mark.parametrize(
    ("expression", "first", "second"),
    [
        ("* * * * *", "2030-01-07 10:31", "2030-01-07 10:32"),
        ("*/15 * * * *", "2030-01-07 10:45", "2030-01-07 11:00"),
        ("0 9 * * mon-fri", "2030-01-08 09:00", "2030-01-09 09:00"),
        ("0 9 * * 1-5", "2030-01-08 09:00", "2030-01-09 09:00"),
        ("30 8-18/5 * * *", "2030-01-07 13:30", "2030-01-07 18:30"),
        ("0 0 1,15 * *", "2030-01-15 00:00", "2030-02-01 00:00"),
        ("0 0 31 * *", "2030-01-31 00:00", "2030-03-31 00:00"),
        ("0 12 29 feb *", "2032-02-29 12:00", "2036-02-29 12:00"),
        ("0 0 13 * fri", "2030-01-11 00:00", "2030-01-13 00:00"),  # one of the two
        ("0 0 */2 * fri", "2030-01-11 00:00", "2030-01-25 00:00"),  # both
        ("0 0 * * 7", "2030-01-13 00:00", "2030-01-20 00:00"),
        ("0 0 * * sun", "2030-01-13 00:00", "2030-01-20 00:00"),
        ("0 0 * * sat-sun", "2030-01-12 00:00", "2030-01-13 00:00"),
        ("0 0 * * sat-0", "2030-01-12 00:00", "2030-01-13 00:00"),
        ("0 0 * * sun-mon", "2030-01-13 00:00", "2030-01-14 00:00"),
        ("5/20 * * * *", "2030-01-07 10:45", "2030-01-07 11:05"),
        ("@hourly", "2030-01-07 11:00", "2030-01-07 12:00"),
        ("@daily", "2030-01-08 00:00", "2030-01-09 00:00"),
        ("@weekly", "2030-01-13 00:00", "2030-01-20 00:00"),
        ("@monthly", "2030-02-01 00:00", "2030-03-01 00:00"),
        ("@yearly", "2031-01-01 00:00", "2032-01-01 00:00"),
        ("cron 0 9 * jan-mar mon", "2030-01-14 09:00", "2030-01-21 09:00"),
    ],
)
def test_cron_expressions_are_understood(expression: str, first: str, second: str) -> None:
    now = seconds("2030-01-07 10:30")  # a Monday
    when = run_times.parse(expression, now, timezone="UTC")
    assert when.kind == "recurring"
    then = run_times.next_time(when.recur, when.first, UTC)
    shown = [f"{datetime.fromtimestamp(each, UTC):%Y-%m-%d %H:%M}" for each in (when.first, then)]
    assert shown == [first, second]


@pytest.mark.parametrize(
    "expression",
    [
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "* * * * funday",
        "*/0 * * * *",
        "*/60 * * * *",
        "5-1 * * * *",
        "1- * * * *",
        "-1 * * * *",
        "1,,2 * * * *",
        "** * * * *",
        "* * * *",
        "cron * * * * * *",
        "cron",
        "0 0 L * *",
        "0 0 1W * *",
        "0 0 * * 5#2",
        "0 0 ? * *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "٣ * * * *",
        "1 2 3 4 5" * 40,
        "@reboot",
        "@",
    ],
)
def test_a_cron_expression_that_is_none_is_refused_with_a_reason(expression: str) -> None:
    with pytest.raises(InvalidParams):
        run_times.parse(expression, 0.0, timezone="UTC")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("0 0 L * *", "the day of the month 'l' is not a number from 1 to 31"),
        ("0 0 ? * mon", "the day of the month '?' is not a number from 1 to 31"),
        (
            "0 0 9 * * *",
            "a cron expression has five fields (minute hour day month weekday), and this one has 6",
        ),
        ("0 9 * *", "a cron expression has five fields (minute hour day month weekday), and this one has 4"),
        ("0 9 * * fri-mon", "the day of the week fri-mon ends before it begins"),
    ],
)
def test_a_refusal_of_a_cron_expression_says_which_field_is_wrong(expression: str, reason: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        run_times.parse(expression, 0.0, timezone="UTC")
    assert refused.value.fields == (("schedule", reason),)


def test_a_time_that_the_clock_skips_comes_as_much_later() -> None:
    expected = ["03-30 02:30+0100", "03-31 03:30+0200", "04-01 02:30+0200"]
    assert runs("every day at 02:30", "2030-03-30 00:00", 3) == expected
    assert runs("30 2 * * *", "2030-03-30 00:00", 3) == expected
    assert runs("every sunday at 02:30", "2030-03-30 00:00", 2) == ["03-31 03:30+0200", "04-07 02:30+0200"]
    assert runs("on 2030-03-31 at 02:30", "2030-03-30 00:00", 1) == ["03-31 03:30+0200"]


def test_of_a_time_that_comes_twice_the_first_counts() -> None:
    expected = ["10-26 02:30+0200", "10-27 02:30+0200", "10-28 02:30+0100"]
    assert runs("every day at 02:30", "2030-10-26 00:00 Europe/Berlin", 3) == expected
    assert runs("30 2 * * *", "2030-10-26 00:00 Europe/Berlin", 3) == expected
    between = "2030-10-27 01:10"  # 02:10 for the second time
    assert runs("every day at 02:30", between, 1) == runs("30 2 * * *", between, 1) == ["10-28 02:30+0100"]


@pytest.mark.parametrize("phrase", ["at 02:30", "on 2030-10-27 at 02:30"])
def test_of_a_time_that_comes_twice_the_second_counts_when_the_first_is_over(phrase: str) -> None:
    assert runs(phrase, "2030-10-27 00:10", 1) == ["10-27 02:30+0200"]
    assert runs(phrase, "2030-10-27 01:10", 1) == ["10-27 02:30+0100"], "it is 02:10 for the second time"


def test_an_expression_for_every_hour_follows_the_clock_as_it_runs() -> None:
    assert runs("0,30 * * * *", "2030-03-31 00:15", 4) == [
        "03-31 01:30+0100",
        "03-31 03:00+0200",
        "03-31 03:30+0200",
        "03-31 04:00+0200",
    ]
    assert runs("30 * * * *", "2030-10-26 23:45", 4) == [
        "10-27 02:30+0200",
        "10-27 02:30+0100",
        "10-27 03:30+0100",
        "10-27 04:30+0100",
    ]


def test_minutes_and_hours_from_now_are_real_time() -> None:
    assert runs("in 2 hours", "2030-03-31 00:30", 1) == ["03-31 04:30+0200"]
    assert runs("every 60 minutes", "2030-10-26 23:30", 3) == [
        "10-27 02:30+0200",
        "10-27 02:30+0100",
        "10-27 03:30+0100",
    ]
    assert runs("in 1 day", "2030-03-30 12:00 Europe/Berlin", 1) == ["03-31 12:00+0200"], "a day of the clock"


@pytest.mark.parametrize(
    "zone", ["Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia", "Asia/Kathmandu"]
)
def test_zones_with_odd_offsets_keep_the_time_of_day(zone: str) -> None:
    at = seconds("2030-01-01 00:00")
    for _ in range(400):
        at = run_times.parse("0 9 * * *", at, timezone=zone).first
        assert f"{datetime.fromtimestamp(at, ZoneInfo(zone)):%H:%M}" == "09:00"


@settings(max_examples=60, deadline=None)
@given(
    minute=st.integers(0, 59),
    hour=st.one_of(st.just("*"), st.integers(0, 23)),
    start=st.integers(int(seconds("2030-01-01 00:00")), int(seconds("2032-01-01 00:00"))),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
)
def test_the_next_time_is_later_and_none_is_left_out(
    minute: int, hour: object, start: int, zone: str
) -> None:
    expression, where = cron.parse(f"{minute} {hour} * * *"), ZoneInfo(zone)
    now = datetime.fromtimestamp(start, UTC)
    found = expression.next_after(now, where)
    assert found is not None and now < found <= now + timedelta(hours=26)
    if hour == "*":
        each = now.replace(second=0, microsecond=0)
        while (each := each + timedelta(minutes=1)) < found:
            assert each.astimezone(where).minute != minute


def test_the_zone_is_at_the_end_of_the_phrase_or_beside_it() -> None:
    now = seconds("2030-01-07 10:30")
    beside = run_times.parse("every day at 09:00", now, timezone="Asia/Tokyo")
    at_end = run_times.parse("every day at 09:00 in Asia/Tokyo", now)
    of_hub = run_times.parse("every day at 09:00", now, default="Asia/Tokyo")
    assert beside == at_end == of_hub and beside.normalized == "every day at 09:00 in Asia/Tokyo"
    assert datetime.fromtimestamp(beside.first, UTC).hour == 0
    assert run_times.parse("0 9 * * * in UTC", now).recur == {"cron": "0 9 * * *", "tz": "UTC"}
    with pytest.raises(InvalidParams, match="and the time zone is"):
        run_times.parse("every day in UTC", now, timezone="Asia/Tokyo")


@pytest.mark.parametrize(
    "zone",
    [
        "Nowhere/Land", "Europe", "../UTC", "/etc/passwd", "Europe/../UTC", "zone.tab", "tzdata.zi", "posixrules/x", "UTC\0",
        "posixrules", "localtime", "Factory", "posix/UTC", "right/UTC",
        "a" * 200, "Europe/Bérlin", "-", "+01:00",
    ],
)  # fmt: skip
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidParams, match="not a known time zone"):
        run_times.parse("every day", 0.0, timezone=zone)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo", ""])
def test_a_time_at_the_end_of_the_calendar_is_refused_in_every_zone(zone: str) -> None:
    assert run_times.parse("in 99999 weeks", 0.0, timezone=zone).first > 60_000_000_000
    for phrase in ("on 9999-12-31 at 23:59", "on 9999-12-31"):
        with pytest.raises(InvalidParams, match="too far away"):
            run_times.parse(phrase, 0.0, timezone=zone)


@pytest.fixture
def machine_in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("machine_in_new_york")
def test_without_a_zone_it_is_that_of_the_machine_with_its_changes() -> None:
    at, local = seconds("2030-03-09 12:00"), []
    for _ in range(3):
        at = run_times.parse("30 2 * * *", at).first
        local.append(f"{datetime.fromtimestamp(at, ZoneInfo('America/New_York')):%m-%d %H:%M%z}")
    assert local == ["03-10 03:30-0400", "03-11 02:30-0400", "03-12 02:30-0400"]
    assert run_times.format_time(int(at), run_times.find_zone("")) == "2030-03-12 02:30 EDT"


def test_the_zone_of_a_hub_is_checked() -> None:
    assert load_settings({"timezone": "Europe/Berlin"}, environment={}).timezone == "Europe/Berlin"
    with pytest.raises(InvalidSetting, match="--timezone"):
        load_settings({"timezone": "Mars"}, environment={})


async def test_a_schedule_shows_its_zone_and_its_next_run() -> None:
    async with house(
        ["/schedule cron 0 9 * * mon in Asia/Tokyo: report", "Done."], timezone="Europe/Berlin"
    ) as hub:
        acme = await hub.tenant("acme")
        body = {"schedule": "0 9 * * mon-fri", "message": "sum up"}
        made = (await acme("POST", "/v1/schedules", {**body, "timezone": "Asia/Tokyo"})).json
        assert made["normalized"] == "0 9 * * mon-fri in Asia/Tokyo"
        task = made["scheduled_task"]
        assert task["timezone"] == "Asia/Tokyo" and task["next_run"].endswith("T09:00:00+09:00")
        assert datetime.fromisoformat(task["next_run"]).timestamp() == task["next_fire_at"]
        other = (await acme("POST", "/v1/schedules", body)).json["scheduled_task"]
        assert other["timezone"] == "Europe/Berlin" and "T09:00:00+0" in other["next_run"]
        paused = await acme("PATCH", f"/v1/schedules/{other['id']}", {"status": "paused"})
        assert paused.json["scheduled_task"]["next_run"] == ""
        await acme.ask("do it")
        assert "09:00 JST" in hub.model.prompts[-1].messages[-1].content
        listed = (await acme("GET", "/v1/schedules")).json["schedules"]
        assert {each["timezone"] for each in listed} == {"Asia/Tokyo", "Europe/Berlin"}
        for wrong in ({"timezone": "Mars"}, {"schedule": "0 25 * * *"}, {"schedule": "every day in Mars"}):
            answer = await acme("POST", "/v1/schedules", {**body, **wrong})
            assert answer.status == 400 and answer.json["fields"]
