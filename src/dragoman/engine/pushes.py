"""The push configs of a task: the operations on them. Sending is somebody else's work (`Push`)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.engine.hooks import Hook, Hooks
from dragoman.engine.seams import Program, Push
from dragoman.errors import InvalidParams, PushNotSupported, TaskNotFound
from dragoman.model.ops import (
    Call,
    CreatePushConfig,
    DeletePushConfig,
    GetPushConfig,
    ListPushConfigs,
    PushConfig,
    PushConfigPage,
)

PushRequest = CreatePushConfig | GetPushConfig | ListPushConfigs | DeletePushConfig


def task_of(request: PushRequest) -> str:
    return request.config.task_id if isinstance(request, CreatePushConfig) else request.task_id


class PushConfigs:
    def __init__(self, hooks: Hooks, push: Push | None) -> None:
        self._hooks, self._push = hooks, push

    def need(self, program: Program) -> Push:
        """Who sends for this agent. Raises `PushNotSupported`."""
        if self._push is None or not program.card.capabilities.push_notifications:
            raise PushNotSupported("push notifications are not supported by this agent")
        return self._push

    async def perform(
        self, push: Push, call: Call, request: PushRequest
    ) -> PushConfig | PushConfigPage | None:
        match request:
            case CreatePushConfig():
                hook = for_task(await push.admit(call, request.config), request.config.task_id)
                return push.shown(await self._hooks.put(call.scope, request.config.task_id, hook))
            case GetPushConfig():
                return await self._get(push, call, request)
            case ListPushConfigs():
                return await self._list(push, call, request)
            case DeletePushConfig():
                await self._hooks.delete(call.scope, request.task_id, request.id)
                return None

    async def _get(self, push: Push, call: Call, request: GetPushConfig) -> PushConfig:
        configs = await self._configs(push, call, request.task_id)
        # Who can have only one calls it `default`, and asks without a name.
        for config in sorted(configs, key=lambda config: config.id != "default"):
            if request.id in ("", config.id):
                return config
        named = f" {request.id[:80]!r}" if request.id else ""
        raise TaskNotFound(
            request.task_id, message=f"task {request.task_id[:80]!r} has no push config{named}"
        )

    async def _list(self, push: Push, call: Call, request: ListPushConfigs) -> PushConfigPage:
        configs = await self._configs(push, call, request.task_id)
        if request.page_token:
            ids = [config.id for config in configs]
            if request.page_token not in ids:
                why = "is not from a page of this list"
                raise InvalidParams(f"pageToken {why}", fields=(("pageToken", why),))
            configs = configs[ids.index(request.page_token) + 1 :]
        page = configs[: request.page_size or None]
        return PushConfigPage(
            configs=tuple(page), next_page_token=page[-1].id if len(page) < len(configs) else ""
        )

    async def _configs(self, push: Push, call: Call, task: str) -> Sequence[PushConfig]:
        return [push.shown(hook) for hook in await self._hooks.list(call.scope, task)]


def for_task(hook: Hook, task: str) -> Hook:
    return replace(hook, config=replace(hook.config, task_id=task))
