"""What an executor is asked, and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dragoman.engine.turn import Turn
from dragoman.executor.spoken import Spoken, as_spoken


class Configuration(Spoken):
    """What the caller said about the answer; of it an executor needs to know only what it may look like."""

    def __init__(self, accepted_output_modes: Sequence[str]) -> None:
        self.accepted_output_modes = list(accepted_output_modes)


class User:
    def __init__(self, name: str) -> None:
        self.is_authenticated, self.user_name = bool(name), name


class ServerCallContext:
    """Who is calling. `state` is the executor's own, for this one message."""

    def __init__(
        self, user: User | None = None, *, tenant: str = "", requested_extensions: Sequence[str] = ()
    ) -> None:
        self.user = user or User("")
        self.tenant = tenant
        self.requested_extensions = set(requested_extensions)
        self.activated_extensions: set[str] = set()
        self.state: dict[str, Any] = {}


class RequestContext:
    """What was asked. Members of messages and tasks are there in every spelling, which no type could say.

    They are the executor's to change: what is on record stays as it is.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.call_context = ServerCallContext(
            User(turn.principal), tenant=turn.scope.tenant, requested_extensions=turn.mail.extensions
        )
        self.configuration = Configuration(turn.mail.accepted_output_modes)
        self.related_tasks: list[Any] = []
        self.metadata: dict[str, Any] = turn.metadata

    @cached_property
    def message(self) -> Any:
        return as_spoken(self._turn.message)

    @cached_property
    def current_task(self) -> Any:
        """The task this message continues; None for the first message."""
        return as_spoken(self._turn.task) if self._turn.n > 1 else None

    @property
    def task_id(self) -> str:
        return self._turn.task_id

    @property
    def context_id(self) -> str:
        return self._turn.context_id

    @property
    def tenant(self) -> str:
        return self.call_context.tenant

    @property
    def requested_extensions(self) -> set[str]:
        return self.call_context.requested_extensions

    def add_activated_extension(self, uri: str) -> None:
        """It is noted; which extensions an answer names is the server's to say."""
        self.call_context.activated_extensions.add(uri)

    def attach_related_task(self, task: Any) -> None:
        self.related_tasks.append(task)

    def get_user_input(self, delimiter: str = "\n") -> str:
        return delimiter.join(part.text for part in self.message.parts if part.text is not None)
