"""An agent, wherever it is: call it, send to it, stream from it, look after its tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, Unpack

from msgspec import UNSET

from dragoman.client.content import id_of, sending, task_of
from dragoman.client.credentials import described
from dragoman.client.discover import get_extended_card
from dragoman.client.link import Link, Options, open_link
from dragoman.client.options import ConnectOptions, SendOptions
from dragoman.client.reply import Reply, Stream, TaskFailed
from dragoman.errors import InvalidAgentResponse, Unauthenticated
from dragoman.model.card import AgentCard
from dragoman.model.content import Message
from dragoman.model.ops import (
    AuthenticationInfo,
    Call,
    CancelTask,
    CreatePushConfig,
    DeletePushConfig,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    ListTasks,
    PushConfig,
    PushConfigPage,
    Request,
    SendMessage,
    Service,
    SubscribeToTask,
    TaskPage,
)
from dragoman.model.task import TERMINAL, StatusUpdate, Task, TaskState

_MAX_ASKING = 16


class Client:
    """`async with connect(...) as agent:` and then `await agent("text")`.

    Every method takes the agent's own words for what went wrong: an `A2AError`. A `timeout` is for the whole of it,
    reconnects and retries included, and ends in a `TimeoutError`.
    """

    def __init__(self, target: Any, options: Options, *, timeout: float | None = None) -> None:
        self._target, self._options = target, options
        self._timeout = timeout
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._asking: dict[str, Task] = {}
        """Tasks that came to a question in a stream: how they were, for those who answer by the task's id."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Find the agent and read its card. `async with` does it; without that, `close` it when you are done."""
        try:
            async with asyncio.timeout(self._timeout), self._opening:
                if self._link is None:
                    self._link = await open_link(self._target, self._options)
        except TimeoutError:
            raise TimeoutError(f"{self._target} did not show its card in time") from None
        return self

    async def close(self) -> None:
        async with self._opening:
            link, self._link = self._link, None
        if link is not None:
            await link.transport.close()

    # -- who it is -----------------------------------------------------------------------------------------------

    @property
    def link(self) -> Link:
        if self._link is None:
            raise RuntimeError("not connected: use `async with connect(...)`, or `await client.open()`")
        return self._link

    @property
    def card(self) -> AgentCard:
        return self.link.found.card

    @property
    def version(self) -> str:
        """The dialect we speak with it: `1.0`, `0.3`, `0.2`, `0.1`, `arbiter` ..."""
        return self.link.peer.dialect.name.removesuffix("-proto")

    @property
    def url(self) -> str:
        """The endpoint we talk to."""
        return self.link.peer.route.url

    @property
    def service(self) -> Service:
        """The agent as a `Service`: the model's own requests, with retries and resumed streams."""
        return self.link.service

    # -- talking -------------------------------------------------------------------------------------------------

    async def __call__(
        self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]
    ) -> Reply:
        """Say something and wait for the answer, however long the way. Options as for `send`.

        Raises `TaskFailed` if the agent failed, rejected or canceled the task; a question comes back as a reply
        that `asks`.
        """
        deadline = self._deadline(timeout)
        if self.link.service.streams and not self.link.peer.ours:
            # Its stream says the task's name at once, so that a broken connection loses nothing.
            stream = self.stream(*content, timeout=timeout, **options)
            async with stream:
                async for piece in stream:
                    if isinstance(piece.event, StatusUpdate) and piece.state is TaskState.AUTH_REQUIRED:
                        break  # the stream may stay open until somebody has allowed it
            reply = stream.reply
        else:
            reply = await self._send(*sending(content, deadline, self._tenant, **options))
            if not reply.state.over:
                reply = await self._wait(reply.id, deadline)
        if reply.task is not None and reply.state in TERMINAL and reply.state is not TaskState.COMPLETED:
            raise TaskFailed(reply.task)
        return reply

    async def send(
        self,
        *content: Any,
        files: Any = (),
        data: Any = UNSET,
        task: str | Task = "",
        context: str | Task = "",
        skill: str = "",
        metadata: Mapping[str, Any] | None = None,
        accept: str | Sequence[str] = (),
        history: int | None = None,
        wait: bool = True,
        push: PushConfig | None = None,
        key: str = "",
        extensions: str | Sequence[str] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Send one message: exactly the protocol's own operation, and what the agent makes of it.

        `content`: text, paths, bytes, parts, or anything that can be data. `files`: paths, bytes or URLs. `task` goes
        on with a task, `context` with a conversation, named by an id or a reply. `wait=False` comes back as soon as the
        agent has the message. `key` is the idempotency key, new for each message unless given.
        """
        call, request = sending(
            content,
            self._deadline(timeout),
            self._tenant,
            files=files,
            data=data,
            task=task,
            context=context,
            skill=skill,
            metadata=metadata,
            accept=accept,
            history=history,
            wait=wait,
            push=push,
            key=key,
            extensions=extensions,
        )
        return await self._send(call, request)

    def stream(self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]) -> Stream:
        """Say something and read the answer as it comes. Options as for `send`.

        With `task=reply` the pieces are what the agent says now, without what the reply had already.
        """
        deadline = self._deadline(timeout)
        call, request = sending(content, deadline, self._tenant, **options)
        known = self._asking.pop(request.message.task_id, None)
        known = task_of(options.get("task", "")) or known
        goes_on = bool(request.message.task_id)
        return Stream(self, self._batches(call, request), deadline, known=known, goes_on=goes_on)

    # -- tasks ---------------------------------------------------------------------------------------------------

    async def get(
        self, task: str | Task, *, history: int | None = None, timeout: float | None = None
    ) -> Task:
        found: Task = await self._ask(
            GetTask(id=id_of(task), history_length=history, tenant=self._tenant), timeout
        )
        return found

    async def list(
        self,
        *,
        context: str = "",
        state: TaskState | str = TaskState.UNSPECIFIED,
        since: str = "",
        history: int | None = None,
        artifacts: bool = False,
        page_size: int | None = None,
    ) -> AsyncIterator[Task]:
        """Every task we may see, newest first, fetched a page at a time. `state` may be a word: `working`."""
        token = ""
        while True:
            page: TaskPage = await self._ask(
                ListTasks(
                    context_id=context,
                    status=_state(state),
                    page_size=page_size,
                    page_token=token,
                    history_length=history,
                    status_timestamp_after=since,
                    include_artifacts=artifacts,
                    tenant=self._tenant,
                )
            )
            for task in page.tasks:
                yield task
            token = _after(token, page)
            if not token:
                return

    async def cancel(self, task: str | Task, *, timeout: float | None = None) -> Task:
        canceled: Task = await self._ask(CancelTask(id=id_of(task), tenant=self._tenant), timeout)
        return canceled

    def subscribe(
        self, task: str | Task, *, after: int | None = None, timeout: float | None = None
    ) -> Stream:
        """Follow a task to its end: how it is now, then what happens to it."""
        deadline = self._deadline(timeout)
        call = Call(deadline=deadline, after=after)
        return Stream(
            self, self._batches(call, SubscribeToTask(id=id_of(task), tenant=self._tenant)), deadline
        )

    async def wait(self, task: str | Task, *, timeout: float | None = None) -> Reply:
        """The reply once a task is over: finished, or asking."""
        return await self._wait(id_of(task), self._deadline(timeout))

    # -- push notifications --------------------------------------------------------------------------------------

    async def create_push(
        self,
        task: str | Task,
        url: str,
        *,
        id: str = "",
        token: str = "",
        scheme: str = "",
        credentials: str = "",
    ) -> PushConfig:
        """Have news of a task sent to `url`. `scheme` and `credentials` are what the agent shows there."""
        login = AuthenticationInfo(scheme=scheme, credentials=credentials) if scheme else None
        config = PushConfig(
            url=url, id=id, task_id=id_of(task), token=token, authentication=login, tenant=self._tenant
        )
        created: PushConfig = await self._ask(CreatePushConfig(config=config, tenant=self._tenant))
        return created

    async def get_push(self, task: str | Task, id: str = "") -> PushConfig:
        found: PushConfig = await self._ask(GetPushConfig(task_id=id_of(task), id=id, tenant=self._tenant))
        return found

    async def list_push(self, task: str | Task) -> Sequence[PushConfig]:
        configs: list[PushConfig] = []
        token = ""
        while True:
            page: PushConfigPage = await self._ask(
                ListPushConfigs(task_id=id_of(task), page_token=token, tenant=self._tenant)
            )
            configs += page.configs
            token = _after(token, page)
            if not token:
                return configs

    async def delete_push(self, task: str | Task, id: str) -> None:
        await self._ask(DeletePushConfig(task_id=id_of(task), id=id, tenant=self._tenant))

    async def extended_card(self) -> AgentCard:
        """The card that the agent shows to authenticated callers."""
        if path := self.link.peer.dialect.extended_card_path:
            return (await get_extended_card(self.link.transport, self.url, path)).card
        card: AgentCard = await self._ask(GetExtendedCard(tenant=self._tenant))
        return card

    # -- underneath ----------------------------------------------------------------------------------------------

    @property
    def _tenant(self) -> str:
        return self.link.peer.route.tenant

    def too_late(self, task: str = "") -> str:
        """What to say when the time is up."""
        rest = f"; its task {task} goes on" if task else ""
        return f"{self.card.name!r} did not finish in time{rest}"

    def _deadline(self, timeout: float | None) -> float | None:
        timeout = self._timeout if timeout is None else timeout
        return None if timeout is None else time.time() + timeout

    def keep_asking(self, task: Task) -> None:
        """A stream ended with a question."""
        while len(self._asking) >= _MAX_ASKING:
            del self._asking[next(iter(self._asking))]
        self._asking[task.id] = task

    async def _send(self, call: Call, request: SendMessage) -> Reply:
        result: Task | Message = await self._within(call, self.link.service.call(call, request))
        return Reply.of(self, result)

    async def _batches(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Any]:
        try:
            async with aclosing(self.link.service.stream(call, request)) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    yield batch
        except Unauthenticated as error:
            raise self._explained(error) from error

    async def _wait(self, task: str, deadline: float | None) -> Reply:
        call = Call(deadline=deadline)
        asked = GetTask(id=task, tenant=self._tenant)
        now: Task = await self._within(call, self.link.service.call(call, asked, patient=True))
        if now.state.over:
            return Reply.of(self, now)
        stream = Stream(self, self._batches(call, SubscribeToTask(id=task, tenant=self._tenant)), deadline)
        async with stream:
            async for piece in stream:
                if piece.state.over:
                    break
        return stream.reply

    async def _ask(self, request: Request, timeout: float | None = None) -> Any:
        call = Call(deadline=self._deadline(timeout))
        return await self._within(call, self.link.service.call(call, request))

    async def _within(self, call: Call, asked: Awaitable[Any]) -> Any:
        """What comes of a call, within its deadline."""
        try:
            if call.deadline is None:
                return await asked
            async with asyncio.timeout(max(0.0, call.deadline - time.time())):
                return await asked
        except TimeoutError:
            raise TimeoutError(self.too_late()) from None
        except Unauthenticated as error:
            raise self._explained(error) from error

    def _explained(self, error: Unauthenticated) -> Unauthenticated:
        """Say what the agent wants to see, and why it did not see it."""
        wants = described(self.card)
        transport = self.link.transport
        here = transport.origin
        hint = f"; it asks for {wants}" if wants else ""
        if wants and transport.credential is None and transport.certificate_for(self.url) is None:
            hint += ", and no credentials were given"
        if transport.credential is not None and not transport.reaches(self.url):
            hint += (
                f"; credentials were given for {here} and stayed there: pass origin={self.url!r} to show them"
            )
        return Unauthenticated(
            f"{error.message}{hint}", metadata=error.metadata, retry_after=error.retry_after
        )


def _after(token: str, page: TaskPage | PushConfigPage) -> str:
    """The token of the page after this one; empty when there is none."""
    if token and page.next_page_token == token:
        raise InvalidAgentResponse(f"the pages of the list go in circles: after {token!r} comes {token!r}")
    return page.next_page_token


def _state(state: TaskState | str) -> TaskState:
    if isinstance(state, TaskState):
        return state
    words = {each.word: each for each in TaskState}
    if state and state not in words:
        raise ValueError(f"there is no state {state!r}: {', '.join(words)}")
    return words[state] if state else TaskState.UNSPECIFIED


def connect(target: Any, *, timeout: float | None = None, **options: Unpack[ConnectOptions]) -> Client:
    """Talk to an agent: `async with connect("https://agent.example.com") as agent:`.

    `target`: a base URL, the URL of a card, a card, a file with one, a name from `dragoman.toml`, or an `Agent`.

    `credentials`: a secret (used as the card asks), a `(name, password)`, a credential such as `ClientCredentials(...)`,
    or those by scheme. They are shown to the origin of `target` only; `origin` names another one. `headers` likewise.
    `version`, `binding`: speak this and nothing else. `timeout`: for each operation, in seconds, all told.
    `signed_by`: talk to it only if one of these keys has signed its card: a JWK set, a file with one, its URL, a `Trust`.
    `policy`: how stubborn to be. `tls`, `proxy`: for the network. `agents`: instead of those in `dragoman.toml`.
    `guard`: checks every address before it is connected to, over every binding (`dragoman.push.Guard()`: public ones).
    """
    if not isinstance(options.get("version", ""), str):
        raise TypeError('a version is text, such as "1.0"')
    return Client(target, Options(**options), timeout=timeout)
