"""Secrets of push configs in the store are sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import InvalidParams, Unavailable
from dragoman.model.ops import AuthenticationInfo, Call, GetPushConfig, ListPushConfigs, PushConfig
from dragoman.push import PushOptions
from dragoman.push.seal import Seal, new_key, read_keys
from dragoman.stores.sqlite.store import SqliteStore
from tests.push.conftest import SCOPE, Open, PushSetup
from tests.push.webhook import Receiver
from tests.requirements import requirement
from tests.waiting import until

SECRETS: dict[str, Any] = {
    "token": "t0ken-planted",
    "authentication": AuthenticationInfo(scheme="Bearer", credentials="credent1als-planted"),
}
KEY, OTHER = new_key(), new_key()


async def stored_config(setup: PushSetup, task: str) -> PushConfig:
    (webhook,) = await setup.store.push_configs.list(SCOPE, task)
    return webhook.config


@requirement(178)
async def test_secrets_are_sealed_in_the_store_and_sent_to_the_webhook(
    setup: Open, webhook: Receiver, tmp_path: Path
) -> None:
    here = await setup(seal=(KEY,))
    task = await here.send("say:1", webhook=webhook, id="one", **SECRETS)
    received = await webhook.wait_for(3)
    assert {each.headers["x-a2a-notification-token"] for each in received} == {"t0ken-planted"}
    assert {each.headers["authorization"] for each in received} == {"Bearer credent1als-planted"}
    assert "planted" not in repr(await stored_config(here, task.id))
    files = [file for file in tmp_path.glob("tasks.db*") if file.is_file()]
    assert bool(files) is isinstance(here.store, SqliteStore), "only SQLite has files here"
    assert not [file for file in files if b"planted" in file.read_bytes()]


async def test_the_owner_reads_a_sealed_config_as_it_was_given(setup: Open, webhook: Receiver) -> None:
    here = await setup(seal=(KEY,))
    task = await here.send("ask")
    created = await here.register(task.id, webhook, id="one", **SECRETS)
    assert (created.token, created.authentication) == (SECRETS["token"], SECRETS["authentication"])
    call = Call(scope=SCOPE)
    assert await here.engine.call(call, GetPushConfig(task_id=task.id, id="one")) == created
    page = await here.engine.call(call, ListPushConfigs(task_id=task.id))
    assert page.configs == (created,)


async def test_a_config_that_was_stored_before_there_was_a_key_still_works(
    setup: Open, webhook: Receiver
) -> None:
    before, after = await setup(), await setup(seal=(KEY,))
    task = await before.send("ask")
    await before.register(task.id, webhook, id="one", **SECRETS)
    found = await after.engine.call(Call(scope=SCOPE), GetPushConfig(task_id=task.id, id="one"))
    assert found.token == SECRETS["token"]


def test_a_new_key_goes_before_the_old_one() -> None:
    config = PushConfig(url="https://webhooks.example", **SECRETS)
    old = Seal((KEY,)).seal(config)
    assert Seal((OTHER, KEY)).open(old) == config
    new = Seal((OTHER, KEY)).seal(config)
    assert Seal((OTHER,)).open(new) == config
    assert new.token != Seal((OTHER,)).seal(config).token


@pytest.mark.parametrize("keys", [(), (OTHER,)], ids=["no key", "another key"])
def test_without_the_key_a_config_cannot_be_read(keys: tuple[str, ...]) -> None:
    sealed = Seal((KEY,)).seal(PushConfig(url="https://webhooks.example", **SECRETS))
    with pytest.raises(Unavailable, match="not here"):
        Seal(keys).open(sealed)


async def test_a_webhook_whose_key_is_missing_gets_nothing_and_the_list_says_why(
    setup: Open, webhook: Receiver
) -> None:
    here = await setup(seal=(KEY,))
    task = await here.send("ask")
    await here.register(task.id, webhook, id="one", **SECRETS)
    before = len(await webhook.wait_for(1))  # it asks
    await here.engine.stop(drain=0)
    there = await setup()
    await there.send("so", task=task.id)
    waiting = await until(
        lambda: there.store.push_queue.find(limit=1), lambda found: found and found[0].error
    )
    assert waiting[0].error == "the push config is sealed with a key that is not here"
    assert len(webhook.notifications) == before


def test_a_secret_that_looks_sealed_is_refused() -> None:
    with pytest.raises(InvalidParams):
        Seal().seal(PushConfig(url="https://webhooks.example", token="sealed:gAAAAA"))


def test_an_invalid_key_is_refused_and_keys_are_not_printed() -> None:
    with pytest.raises(ValueError, match="32"):
        Seal(("short",))
    with pytest.raises(ValueError, match="keys seal"):
        read_keys(f"{KEY}, short")
    assert read_keys(f" {KEY},{OTHER} ,") == (KEY, OTHER) and read_keys("") == ()
    assert KEY not in repr(PushOptions(seal=(KEY,), secret="s3cret")) + repr(Seal((KEY,)))
    assert "s3cret" not in repr(PushOptions(secret="s3cret"))
