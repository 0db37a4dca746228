"""Push configs over every binding in every version: all four operations, and a notification at the end."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import connect
from dragoman.errors import TaskNotFound
from dragoman.model.ops import AuthenticationInfo, PushConfig
from dragoman.push import PushOptions, read_notification
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.push.test_operations import make
from tests.push.webhook import Receiver

WAYS = [
    ("1.0", "JSONRPC"),
    ("1.0", "HTTP+JSON"),
    ("1.0", "GRPC"),
    ("0.3", "JSONRPC"),
    ("0.3", "HTTP+JSON"),
    ("0.3", "GRPC"),
    ("0.2", "JSONRPC"),
    ("0.1", "JSONRPC"),
]

LOGIN = AuthenticationInfo(scheme="Bearer", credentials="shh")


@pytest.mark.parametrize(("version", "binding"), WAYS)
async def test_a_config_over_every_binding_gets_its_notifications(
    version: str, binding: str, webhook: Receiver
) -> None:
    app = application(make(), store="memory:", grpc_port=0, push=PushOptions(allow_private=True))
    async with running(app) as url, connect(url, version=version, binding=binding) as agent:
        brought = PushConfig(url=webhook.url, id="brought", token="t0k", authentication=LOGIN)
        reply = await agent.send("hi", push=brought)
        task = reply.id
        if version == "0.1":  # one config per task, no list, no delete, no secrets
            got = await agent.get_push(task)
            assert (got.id, got.url, got.token, got.task_id) == ("default", webhook.url, "t0k", task)
        else:
            assert await agent.get_push(task, "brought") == _as_kept(brought, task)
            made = await agent.create_push(task, webhook.url + "/2", id="made")
            assert [config.id for config in await agent.list_push(task)] == ["brought", "made"]
            for _ in range(2):
                await agent.delete_push(task, made.id)
            assert [config.id for config in await agent.list_push(task)] == ["brought"]
            with pytest.raises(TaskNotFound):
                await agent.get_push(task, made.id)
        await webhook.until(lambda: _has_state(webhook, "input-required"))
        await reply.answer("so")
        await webhook.until(lambda: _has_state(webhook, "completed"))
    assert {
        received.headers["authorization"] for received in webhook.notifications if received.path == "/webhook"
    } == {"Bearer shh"}
    assert {received.headers["content-type"] for received in webhook.notifications} == {
        "application/a2a+json" if version == "1.0" else "application/json"
    }


def _as_kept(config: PushConfig, task: str) -> PushConfig:
    return PushConfig(
        url=config.url, id=config.id, task_id=task, token=config.token, authentication=config.authentication
    )


def _has_state(webhook: Receiver, word: str) -> bool:
    events: list[Any] = [read_notification(received.body) for received in webhook.notifications]
    return any(event.status.state.word == word for event in events if hasattr(event, "status"))
