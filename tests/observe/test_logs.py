"""Log lines when somebody else chose what is in them."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

import pytest

from dragoman.observe.logs import LOG_FIELDS, MAX_CHARACTERS, PlainLines, redact
from dragoman.observe.redact import redact_text
from tests import raw
from tests.serving import Server
from tests.waiting import until


def line(message: str, **about: str) -> str:
    record = logging.LogRecord("dragoman.x", logging.INFO, "f", 1, "%s", (message,), None)
    record.exc_info = sys.exc_info() if sys.exc_info()[0] else None
    before = LOG_FIELDS.set(lambda: about)
    try:
        return PlainLines().format(record)
    finally:
        LOG_FIELDS.reset(before)


@pytest.mark.parametrize("brk", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028", "\x1b[2J"])
def test_a_message_cannot_make_a_line_of_its_own(brk: str) -> None:
    said = line(f"GET /x{brk}2026-01-01 ERROR dragoman forged failed")
    assert len(said.splitlines()) == 1
    assert "\x1b" not in said


def test_a_traceback_cannot_make_a_line_that_looks_like_ours() -> None:
    try:
        raise ValueError("bad\n2026-01-01 ERROR dragoman forged")
    except ValueError:
        said = line("it failed", task="t1")
    first, *rest = said.splitlines()
    assert first.endswith("it failed task=t1")
    assert rest and all(each.startswith("    ") for each in rest)


def test_a_field_of_a_line_cannot_add_another_field() -> None:
    said = line("hello", trace="abc principal=root", principal="ada")
    assert said.endswith('hello trace="abc principal=root" principal=ada')


@pytest.mark.parametrize(
    "text",
    [
        "dgm_s3cretvalue",
        "whsec_s3cretvalue==",
        "https://user:s3cretvalue@webhooks.example/x",
        "refresh_token=s3cretvalue",
        "X-A2A-Notification-Token: s3cretvalue",
        "DRAGOMAN_ADMIN_TOKEN=s3cretvalue",
        "AuthenticationInfo(scheme='Bearer', credentials='s3cretvalue')",
        "Cookie: a=b; sid=s3cretvalue; c=d",
        "Authorization: Digest s3cretvalue",
        "-----BEGIN PRIVATE KEY-----\ns3cretvalue\n-----END PRIVATE KEY-----",
        json.dumps(json.dumps({"password": "s3cretvalue"})),
    ],
)
def test_secrets_are_redacted_by_name_and_by_form(text: str) -> None:
    assert "s3cretvalue" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "x-eyJhbGciOi.eyJzdWIi.c2ln after",
        "aeyJhbGciOi.eyJzdWIi.c2ln",
        "token_eyJhbGciOi.eyJzdWIi.c2ln",
        "monkeyJhbGciOi.eyJzdWIi.c2ln",
        "Bearer eyJhbGciOi.eyJzdWIi.c2ln",
        "eyJhbGciOi.eyJzdWIi",  # the rest was cut off
        "(eyJhbGciOi.eyJzdWIi.)",
    ],
)
def test_tokens_are_redacted_anywhere_in_a_line(text: str) -> None:
    assert "eyJ" not in redact(text) and "***" in redact(text)


def test_a_secret_after_a_word_that_starts_like_a_token_is_redacted() -> None:
    assert redact("eyJ-eyJ_no-token") == "eyJ-eyJ_no-token"
    assert redact("keyJob.name task-0123456789") == "keyJob.name task-0123456789"
    assert redact("xdgm_0123456789") == "x***"
    assert redact("eyJ-sk-0123456789 eyJ_token=s3cretvalue") == "eyJ-*** eyJ_token=***"


@pytest.mark.parametrize("unit", ["a ", "a", "eyJ-", "\x1b", "\n"])
def test_a_very_long_line_is_cut(unit: str) -> None:
    said = line(unit * 1_000_000)
    assert len(said) < 8 * MAX_CHARACTERS
    assert said.endswith("characters in all)")


@pytest.mark.parametrize("before", range(60))
def test_no_half_of_a_secret_is_left_where_a_line_is_cut(before: int) -> None:
    for secret in (
        "https://ada:s3cretvalue@host/",
        "token=s3cretvalue",
        "Bearer s3cretvalue",
        "dgm_s3cretvalue",
    ):
        text = "word " * ((MAX_CHARACTERS - 60) // 5) + "x" * before + " " + secret + " more" * 100
        assert len(text) > MAX_CHARACTERS and "s3c" not in redact(text)


def test_an_error_with_a_very_long_text_is_cut() -> None:
    try:
        raise ValueError("no " * 1_000_000)
    except ValueError:
        said = line("it failed")
    assert "ValueError: no no" in said and len(said) < 2 * MAX_CHARACTERS


async def test_every_log_line_of_a_server_is_json(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(LOUD)
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    async with Server(file, options=("--log", "json")) as server:
        await raw.result(server.url, "SendMessage", {"message": message})
        async with asyncio.timeout(10):
            await until(lambda: server.said.count(b"\n") >= 2)
    said = [json.loads(line) for line in server.said.decode().splitlines()]
    assert {"somebody.else", "dragoman.runner"} <= {line["logger"] for line in said}


LOUD = """
import logging
from dragoman import Agent

agent = Agent("Loud")

@agent.skill
def shout(text: str) -> str:
    logging.getLogger("somebody.else").warning("a line of another library")
    raise ValueError("no")
"""


@pytest.mark.parametrize(
    "secret",
    [
        "dgm_" + "a" * 8,
        "whsec_" + "a" * 8,
        "ghp_" + "a" * 16,
        "glpat-" + "a" * 20,
        "AKIA" + "A" * 16,
        "op_" + "b" * 32,
    ],
)
def test_logs_and_the_console_mask_the_same_keys(secret: str) -> None:
    assert secret not in redact(f"it was {secret}, they say")
    assert secret not in redact_text(f"it was {secret}, they say")
