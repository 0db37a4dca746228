"""Holders in a file that changes while a server runs."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.auth import ApiKey, Basic, Bearer, Presented, hashed, hashed_password
from dragoman.auth.requirements import no_fetch
from dragoman.errors import Unauthenticated


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("dragoman.auth.secrets._RELOAD_SECONDS", 0.0)
    return tmp_path / "holders.json"


def write(file: Path, holders: Any) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(holders if isinstance(holders, str) else json.dumps(holders))
    beside.replace(file)


async def who(scheme: Any, **headers: str) -> str:
    found = await scheme.authenticate(
        Presented({n.replace("_", "-"): v for n, v in headers.items()}), no_fetch
    )
    return found.id if found is not None else ""


async def test_a_token_that_is_added_is_accepted_and_a_removed_one_is_refused(file: Path) -> None:
    write(file, {"ada": hashed("a")})
    scheme = Bearer(file)
    assert await who(scheme, authorization="Bearer a") == "ada"
    write(file, {"bob": {"secret": [hashed("b"), hashed("c")], "scopes": ["read"], "tenant": "acme"}})
    found = await scheme.authenticate(Presented({"authorization": "Bearer c"}), no_fetch)
    assert found is not None
    assert (found.id, found.tenant, found.scopes) == ("bob", "acme", frozenset({"read"}))
    with pytest.raises(Unauthenticated):
        await who(scheme, authorization="Bearer a")


async def test_a_change_is_noticed_that_leaves_the_size_and_the_time_as_they_were(file: Path) -> None:
    write(file, {"ada": hashed("a")})
    scheme, before = Bearer(file), file.stat()
    write(file, {"ada": hashed("b")})
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await who(scheme, authorization="Bearer b") == "ada"


async def test_keys_and_passwords_can_be_in_a_file_too(file: Path) -> None:
    write(file, {"ada": hashed("a")})
    key = ApiKey(str(file))
    assert await who(key, x_api_key="a") == "ada"
    write(file, {"ada": hashed_password("pass")})
    assert await who(Basic(file), authorization="Basic YWRhOnBhc3M=") == "ada"


@pytest.mark.parametrize("broken", ["", "[]", "{", '{"eve": "no hash"}', '{"eve": {"scopes": []}}', None])
async def test_an_invalid_file_changes_nothing_and_is_logged(
    file: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, {"ada": hashed("a")})
    scheme = Bearer(file)
    if broken is None:
        file.unlink()
    else:
        write(file, broken)
    with caplog.at_level(logging.ERROR):
        assert await who(scheme, authorization="Bearer a") == "ada"
    assert "holders.json cannot be read" in caplog.text
    write(file, {"bob": hashed("b")})
    assert await who(scheme, authorization="Bearer b") == "bob"


@pytest.mark.parametrize("broken", ["{", '{"eve": "no hash"}'])
async def test_an_invalid_file_at_the_start_is_an_error(file: Path, broken: str) -> None:
    write(file, broken)
    with pytest.raises(ValueError, match=r"truncated|hash"):
        Bearer(file)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("{", "Input data was truncated"),
        ('{"eve": 5}', 'it should be {"NAME": "HASH"} or '),
        ('{"eve": {"secert": "x"}}', "missing required field `secret`"),
        ('{"eve": "secret"}', "the secret of 'eve' is not a SHA-256"),
    ],
)
def test_a_file_that_is_invalid_from_the_start_is_named(file: Path, broken: str, why: str) -> None:
    write(file, broken)
    with pytest.raises(ValueError, match=f"^holders.json cannot be read: .*{re.escape(why)}"):
        Bearer(file)
