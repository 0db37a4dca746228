"""Attacks with push configs."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.ops import (
    Call,
    CreatePushConfig,
    DeletePushConfig,
    GetPushConfig,
    ListPushConfigs,
    PushConfig,
    Scope,
)
from tests.push.conftest import SCOPE, Open
from tests.push.net import PUBLIC, Net
from tests.push.webhook import Answer, Notification, Receiver
from tests.requirements import older
from tests.waiting import until


class Named(Receiver):
    """A webhook that has a name on our internet."""

    @property
    def url(self) -> str:
        return "http://webhook.example:8080/webhook"


async def test_a_name_that_resolves_differently_later_is_refused(setup: Open) -> None:
    """Good while it is registered and first told; then it means the metadata service, then loopback."""

    async def answer(received: Notification) -> Answer:
        return b"HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    async with Named(answer) as webhook:
        net = Net(webhook.port, {"webhook.example": [[PUBLIC], ["169.254.169.254"], ["127.0.0.1", PUBLIC]]})
        here = await setup(guard=net.guard(http=True), max_attempts=3)
        await here.send("say", webhook=webhook)
        dead = await _dead(here)
        assert len(webhook.notifications) == 1 and net.dialled == [PUBLIC]
        assert "not on the internet" in dead.error and dead.cursor == webhook.notifications[0].seq


async def test_a_redirect_of_a_webhook_is_not_followed(setup: Open) -> None:
    async def answer(received: Notification) -> Answer:
        return b"HTTP/1.1 302 X\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n"

    async with Named(answer) as webhook:
        net = Net(webhook.port, {"webhook.example": [[PUBLIC]]})
        here = await setup(guard=net.guard(http=True), max_attempts=2)
        await here.send("say", webhook=webhook)
        await _dead(here)
        assert set(net.asked) == {"webhook.example"} and set(net.dialled) == {PUBLIC}
        assert len(webhook.refused) == 2


async def test_a_config_that_was_fine_is_looked_at_again_before_each_notification(setup: Open) -> None:
    """An operator who becomes stricter need not go through the old configs."""
    async with Named() as webhook:
        net = Net(webhook.port, {"webhook.example": [[PUBLIC]]})
        first = await setup(guard=net.guard(http=True))
        task = await first.send("ask", webhook=webhook)
        await webhook.wait_for(2)
        await first.engine.stop(drain=1)
        second = await setup(guard=net.guard(http=True, only=("other.example",)), max_attempts=1)
        dialled = len(net.dialled)
        await second.send("so", task=task.id)
        assert "the address is not allowed" in (await _dead(second)).error
        assert len(net.dialled) == dialled and len(webhook.notifications) == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"token": "a\r\nX-Injected: 1"},
        {"token": "a\nX-Injected: 1"},
        {"token": "a\x00b"},
        {"token": "a\x85b"},
        {"id": "a\r\nb"},
        {"url": "http://127.0.0.1:1/\r\nX-Injected: 1"},
        {"url": "http://127.0.0.1:1/ HTTP/1.1\r\nX: 1"},
    ],
)
async def test_push_configs_with_invalid_header_values_are_refused(setup: Open, bad: dict[str, str]) -> None:
    here = await setup()
    task = await here.send("ask")
    config = PushConfig(**{"url": "http://127.0.0.1:1/", "task_id": task.id, **bad})
    with pytest.raises(InvalidParams):
        await here.engine.call(Call(scope=SCOPE), CreatePushConfig(config=config))
    assert list(await here.store.push_configs.list(SCOPE, task.id)) == []


@pytest.mark.parametrize(
    "stranger", [Scope("", "told", "mallory"), Scope("rival", "told", ""), Scope("", "told", "told")]
)
async def test_the_configs_of_others_cannot_be_seen_changed_or_made(
    setup: Open, webhook: Receiver, stranger: Scope
) -> None:
    here = await setup()
    task = await here.send("ask", webhook=webhook, id="one", token="secret")
    call = Call(scope=stranger)
    requests: list[Any] = [
        CreatePushConfig(config=PushConfig(url=webhook.url, task_id=task.id, id="one")),
        CreatePushConfig(config=PushConfig(url=webhook.url, task_id=task.id)),
        GetPushConfig(task_id=task.id, id="one"),
        GetPushConfig(task_id=task.id),
        ListPushConfigs(task_id=task.id),
        DeletePushConfig(task_id=task.id, id="one"),
    ]
    said = set()
    for request in requests:
        with pytest.raises(TaskNotFound) as refused:
            await here.engine.call(call, request)
        said.add(str(refused.value))
    with pytest.raises(TaskNotFound) as refused:
        await here.engine.call(call, ListPushConfigs(task_id="no such task"))
    assert said == {str(refused.value).replace("no such task", task.id)}  # ours and nobody's look the same
    (config,) = await here.store.push_configs.list(SCOPE, task.id)
    assert (config.config.id, config.config.token) == ("one", "secret")


@older("X14")
async def test_a_webhook_must_answer_the_challenge(setup: Open, webhook: Receiver) -> None:
    here = await setup(challenge=True)
    with pytest.raises(InvalidParams):  # it answers 204 to everything
        await here.send("say", webhook=webhook)

    async def answer(received: Notification) -> Answer:
        if received.method == "GET":
            token = received.path.partition("?validationToken=")[2].encode()
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(token), token)
        return 200

    webhook.answer = answer
    webhook.notifications.clear()
    await here.send("say", webhook=webhook)
    received = await webhook.wait_for(4)
    assert [each.method for each in received] == ["GET", "POST", "POST", "POST"]


async def test_the_challenge_is_sent_only_to_allowed_addresses(setup: Open) -> None:
    net = Net(names={"webhook.example": [["10.0.0.1"]]})
    here = await setup(guard=net.guard(http=True), challenge=True)
    task = await here.send("ask")
    config = PushConfig(url="http://webhook.example/", task_id=task.id)
    with pytest.raises(InvalidParams) as refused:
        await here.engine.call(Call(scope=SCOPE), CreatePushConfig(config=config))
    assert net.dialled == [] and "10.0.0.1" not in str(refused.value)


async def _dead(here: Any) -> Any:
    return (await until(lambda: here.store.push_queue.find(dead=True, limit=10)))[0]


async def test_errors_do_not_contain_the_query_of_a_webhook(
    setup: Open, webhook: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    here = await setup()
    task = await here.send("ask")
    config = PushConfig(url=f"{webhook.url}?k=p1anted", task_id=task.id)
    await webhook.down()
    with caplog.at_level("INFO"):
        await here.engine.call(Call(scope=SCOPE), CreatePushConfig(config=config))
        waiting = await until(
            lambda: here.store.push_queue.find(limit=1), lambda found: found and found[0].error
        )
    assert webhook.url in waiting[0].error
    assert "p1anted" not in waiting[0].error + caplog.text
