"""The operations on the push configs of a task: create, get, list and delete them.

The engine has checked that the caller may see the task. `push_configs.py` has what a store does with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2s

from msgspec.structs import replace

from dragoman.engine.protocols import Push
from dragoman.engine.push_configs import PushConfigStore, StoredPushConfig
from dragoman.errors import TaskNotFound
from dragoman.model.ops import (
    Call,
    CreatePushConfig,
    DeletePushConfig,
    GetPushConfig,
    ListPushConfigs,
    PushConfig,
    PushConfigPage,
    refuse_page_token,
)

PushRequest = CreatePushConfig | GetPushConfig | ListPushConfigs | DeletePushConfig


async def perform_on_push_configs(
    push: Push, configs: PushConfigStore, call: Call, request: PushRequest
) -> PushConfig | PushConfigPage | None:
    match request:
        case CreatePushConfig():
            webhook = for_task(await push.check_config(call, request.config), request.config.task_id)
            return push.show_config(await configs.put(call.scope, request.config.task_id, webhook))
        case GetPushConfig():
            webhooks = await configs.list(call.scope, request.task_id)
            return _find([push.show_config(webhook) for webhook in webhooks], request)
        case ListPushConfigs():
            return _make_page(push, await configs.list(call.scope, request.task_id), request)
        case DeletePushConfig():
            await configs.delete(call.scope, request.task_id, request.id)
            return None


def for_task(webhook: StoredPushConfig, task: str) -> StoredPushConfig:
    return replace(webhook, config=replace(webhook.config, task_id=task))


def _find(configs: Sequence[PushConfig], request: GetPushConfig) -> PushConfig:
    # In a version with one config for each task, its id is `default`, and requests have no id.
    for config in sorted(configs, key=lambda config: config.id != "default"):
        if request.id in ("", config.id):
            return config
    named = f" {request.id[:80]!r}" if request.id else ""
    raise TaskNotFound(request.task_id, message=f"task {request.task_id[:80]!r} has no push config{named}")


def _make_page(push: Push, webhooks: Sequence[StoredPushConfig], request: ListPushConfigs) -> PushConfigPage:
    seen = _read_page_token(request) if request.page_token else ()
    hashes = [_hash_id(webhook.uid) for webhook in webhooks]
    start = max((n for n, each in enumerate(hashes, 1) if each in seen), default=0)
    end = min(len(webhooks), start + request.page_size) if request.page_size else len(webhooks)
    token = _write_page_token(request.task_id, hashes[:end]) if end < len(webhooks) else ""
    return PushConfigPage(configs=tuple(map(push.show_config, webhooks[start:end])), next_page_token=token)


def _write_page_token(task: str, hashes: Sequence[str]) -> str:
    """A page token has hashes of all configs on the pages before. The next page begins after the last of them that exists."""
    return ".".join((_hash_id(task), *hashes))


def _read_page_token(request: ListPushConfigs) -> Sequence[str]:
    """The hashes of the configs on the pages before. Raises `InvalidParams` for a token of another list."""
    task, *seen = request.page_token.split(".")
    if task != _hash_id(request.task_id) or not seen:
        refuse_page_token()
    return seen


def _hash_id(id: str) -> str:
    return blake2s(id.encode(), digest_size=6).hexdigest()
