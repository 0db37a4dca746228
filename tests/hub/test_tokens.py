"""Tokens are counted also of a reply that nobody ever got whole, as far as is known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dragoman.hub.models import ModelError, Prompt, Usage
from tests.hub.house import events, house

FAILED_CODE = ModelError("provider_error", "the model provider failed")


def used(received: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [payload for kind, payload in received if kind == "token_usage"]


def total(prompt: Prompt) -> int:
    return len(prompt.system) + sum(len(message.content) for message in prompt.messages)


async def test_a_provider_that_breaks_off_is_paid_for_what_it_had_read_and_written() -> None:
    async with house([("one two three four", FAILED_CODE)]) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("hello")
        (asked,) = hub.model.prompts
        (counted,) = used(received)
        assert counted["estimated"] is True
        assert counted["output_tokens"] == 5 and counted["input_tokens"] == -(-total(asked) // 4)
        done = received[-1][1]
        assert done["error_code"] == "provider_error" and done["output_tokens"] == 5


async def test_usage_reported_by_a_provider_replaces_the_estimate() -> None:
    async with house([("one two", Usage(input_tokens=7, output_tokens=2))]) as hub:
        received = await (await hub.tenant("acme")).ask("hello")
        (counted,) = used(received)
        assert (counted["input_tokens"], counted["output_tokens"]) == (7, 2) and "estimated" not in counted


async def test_the_tokens_of_models_are_in_the_metrics_by_tenant() -> None:
    async with house([("one two", Usage(input_tokens=7, output_tokens=2, cache_read_tokens=3))]) as hub:
        await (await hub.tenant("acme")).ask("hello")
        lines = (await hub.nobody("GET", "/v1/metrics")).body.decode().splitlines()
        counted = {
            line.split('kind="')[1].split('"')[0]: line.split()[-1]
            for line in lines
            if "_tokens_total{" in line
        }
        assert counted == {"input": "7", "output": "2", "cached": "3"}


async def test_a_provider_that_never_began_is_paid_nothing() -> None:
    async with house([FAILED_CODE]) as hub:
        received = await (await hub.tenant("acme")).ask("hello")
        (counted,) = used(received)
        assert (counted["input_tokens"], counted["output_tokens"]) == (0, 0) and "estimated" not in counted


async def test_a_reply_that_is_canceled_is_counted() -> None:
    async with house([("one two three four", asyncio.Event())]) as hub:
        acme = await hub.tenant("acme")
        going = acme.open("POST", "/v1/orchestrate", {"message": "hello"})
        await going.until(lambda: b"four" in going.body)
        await acme("POST", f"/v1/requests/{going.headers['x-request-id']}/cancel")
        received = events(await going.end())
        (counted,) = used(received)
        assert counted["estimated"] is True and counted["output_tokens"] == 5
        done = received[-1][1]
        assert done["error_code"] == "cancelled"
        assert (done["input_tokens"], done["output_tokens"]) == (counted["input_tokens"], 5)


async def test_a_reply_that_a_hub_died_in_is_counted_when_it_is_asked_for_again(tmp_path: Path) -> None:
    async with house([("one two three four", asyncio.Event())], folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        going = acme.open("POST", "/v1/orchestrate", {"message": "hello"})
        await going.until(lambda: b"four" in going.body)
        request = going.headers["x-request-id"]
    async with house(["one two three four five"], folder=tmp_path) as hub:
        acme.app = hub.app
        received = events(await acme("GET", f"/v1/requests/{request}/events"))
        lost, counted = used(received)
        assert lost["estimated"] is True and lost["output_tokens"] == 5 and lost["input_tokens"] > 100
        assert counted["output_tokens"] == 5 and "estimated" not in counted
        assert received[-1][1]["ok"] and received[-1][1]["output_tokens"] == 5, (
            "the sum has what is on record"
        )
        assert received[-1][1]["content"] == "one two three four five"
