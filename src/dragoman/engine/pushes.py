"""The push configs of a task: the operations on them. Sending is somebody else's work (`Push`)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2s

from msgspec.structs import replace

from dragoman.engine.protocols import Program, Push
from dragoman.engine.push_configs import Hook, Hooks
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
        hooks = await self._hooks.list(call.scope, request.task_id)
        seen = _seen(request) if request.page_token else ()
        marks = [_mark(hook.uid) for hook in hooks]
        start = max((n for n, mark in enumerate(marks, 1) if mark in seen), default=0)
        end = min(len(hooks), start + request.page_size) if request.page_size else len(hooks)
        token = _token(request.task_id, marks[:end]) if end < len(hooks) else ""
        return PushConfigPage(configs=tuple(map(push.shown, hooks[start:end])), next_page_token=token)

    async def _configs(self, push: Push, call: Call, task: str) -> Sequence[PushConfig]:
        return [push.shown(hook) for hook in await self._hooks.list(call.scope, task)]


# A token names all that was shown before the next page. They are few, and of those that are still there, the last is where
# it begins: whichever were deleted meanwhile.


def _token(task: str, marks: Sequence[str]) -> str:
    return ".".join((_mark(task), *marks))


def _seen(request: ListPushConfigs) -> Sequence[str]:
    """Raises `InvalidParams` for a token that did not come from the list of this task."""
    task, *seen = request.page_token.split(".")
    if task != _mark(request.task_id) or not seen:
        why = "is not from a page of this list"
        raise InvalidParams(f"pageToken {why}", fields=(("pageToken", why),))
    return seen


def _mark(id: str) -> str:
    return blake2s(id.encode(), digest_size=6).hexdigest()


def for_task(hook: Hook, task: str) -> Hook:
    return replace(hook, config=replace(hook.config, task_id=task))
