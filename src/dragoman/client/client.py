"""`connect` and `Client`: call an agent, stream its answers, manage its tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self, Unpack

from msgspec.structs import replace

from dragoman.client.config import is_below
from dragoman.client.connection import ConnectOptions, Link, Options, open_link
from dragoman.client.content import SendOptions, build_request, id_of, task_of
from dragoman.client.credentials import describe_schemes
from dragoman.client.extensions import prepare, read_batch, read_event, uris_of
from dragoman.client.reply import Reply, Stream, TaskFailed
from dragoman.client.skills import Skills
from dragoman.errors import InvalidAgentResponse, Unauthenticated
from dragoman.model.card import AgentCard
from dragoman.model.content import Message
from dragoman.model.ops import (
    AuthenticationInfo,
    Call,
    CancelTask,
    CreatePushConfig,
    DeletePushConfig,
    ExtensionCall,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    ListTasks,
    PushConfig,
    PushConfigPage,
    Request,
    Scope,
    SendMessage,
    Service,
    SubscribeToTask,
    TaskPage,
)
from dragoman.model.options import check_options
from dragoman.model.task import TERMINAL, StatusUpdate, Task, TaskState

_MAX_QUESTIONS = 16


class Client:
    """`async with connect(...) as agent:` and then `await agent("text")`.

    Methods raise the agent's error as an `A2AError`. A `timeout` covers the whole operation with its reconnects and
    retries, and ends in a `TimeoutError`.
    """

    def __init__(self, target: Any, options: Options, *, timeout: float | None = None) -> None:
        self._target, self._options = target, options
        self._timeout = timeout
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._questions: dict[str, Task] = {}
        """Tasks whose stream ended with a question, by id, for callers that answer with `task=id`."""

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

    # -- the agent -----------------------------------------------------------------------------------------------

    @property
    def link(self) -> Link:
        if self._link is None:
            raise RuntimeError("not connected: use `async with connect(...)`, or `await client.open()`")
        return self._link

    @property
    def card(self) -> AgentCard:
        return self.link.found.card

    @property
    def skills(self) -> Skills[Coroutine[Any, Any, Reply], Stream]:
        """The agent's skills as functions: `await agent.skills.book(city="Rome")`."""
        return Skills(self.card, self.__call__, self.stream)

    @property
    def version(self) -> str:
        """The dialect in use: `1.0`, `0.3`, `0.2`, `0.1`, `arbiter` ..."""
        return self.link.peer.dialect.name.removesuffix("-proto")

    @property
    def url(self) -> str:
        """The endpoint in use."""
        return self.link.peer.route.url

    @property
    def service(self) -> Service:
        """The agent as a `Service`: the model's own requests, with retries and resumed streams."""
        return self.link.service

    # -- messages -------------------------------------------------------------------------------------------------

    async def __call__(
        self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]
    ) -> Reply:
        """Send a message and wait for the answer. Options as for `send`.

        Raises `TaskFailed` if the agent failed, rejected or canceled the task; a question comes back as a reply
        that `asks`.
        """
        deadline = self._deadline(timeout)
        if self.link.service.streams and not self.link.peer.is_dragoman:
            # Its stream has the task's id at once, so a broken connection loses nothing.
            stream = self.stream(*content, timeout=timeout, **options)
            async with stream:
                async for piece in stream:
                    if isinstance(piece.event, StatusUpdate) and piece.state is TaskState.AUTH_REQUIRED:
                        break  # the stream may stay open until somebody grants it
            reply = stream.reply
        else:
            reply = await self._send(*_build_request(content, deadline, options))
            if not reply.state.settled:
                reply = await self._wait(reply.id, deadline)
        if reply.task is not None and reply.state in TERMINAL and reply.state is not TaskState.COMPLETED:
            raise TaskFailed(reply.task)
        return reply

    async def send(
        self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]
    ) -> Reply:
        """Send one message: exactly the protocol's operation, and its result.

        `content`: text, paths, bytes, parts, or anything that can be data. `files`: paths, bytes or URLs. `task`
        continues a task, `context` a conversation, given as an id or a reply. `wait=False` returns as soon as the agent
        has the message. `key` is the idempotency key, new for each message unless given.
        """
        return await self._send(*_build_request(content, self._deadline(timeout), options))

    def stream(self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]) -> Stream:
        """Send a message and read the answer as it comes. Options as for `send`.

        With `task=reply` the pieces are what the agent says now, without what the reply already has.
        """
        deadline = self._deadline(timeout)
        call, request = _build_request(content, deadline, options)
        known = self._questions.pop(request.message.task_id, None)
        known = task_of(options.get("task", "")) or known
        continues = bool(request.message.task_id)
        return Stream(self, self._batches(call, request), deadline, known=known, continues=continues)

    async def call_method(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Call a method that an extension of the agent adds: `await agent.call_method("usage/get", {"taskId": id})`."""
        request = ExtensionCall(method=method, params=dict(params or {}))
        call = Call(deadline=self._deadline(timeout), extensions=uris_of(self._options.extensions))
        return await self._within(call, self.link.service.call(call, request))

    # -- tasks ---------------------------------------------------------------------------------------------------

    async def get(
        self, task: str | Task, *, history: int | None = None, timeout: float | None = None
    ) -> Task:
        found: Task = await self._ask(GetTask(id=id_of(task), history_length=history), timeout)
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
                )
            )
            for task in page.tasks:
                yield task
            token = _next_token(token, page)
            if not token:
                return

    async def cancel(self, task: str | Task, *, timeout: float | None = None) -> Task:
        canceled: Task = await self._ask(CancelTask(id=id_of(task)), timeout)
        return canceled

    def subscribe(
        self, task: str | Task, *, after: int | None = None, timeout: float | None = None
    ) -> Stream:
        """Follow a task to its end: first the task as it is, then its events."""
        deadline = self._deadline(timeout)
        call = Call(deadline=deadline, after=after)
        return Stream(self, self._batches(call, SubscribeToTask(id=id_of(task))), deadline)

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
        """Have updates of a task sent to `url`. The agent authenticates there with `scheme` and `credentials`."""
        login = AuthenticationInfo(scheme=scheme, credentials=credentials) if scheme else None
        config = PushConfig(url=url, id=id, task_id=id_of(task), token=token, authentication=login)
        created: PushConfig = await self._ask(CreatePushConfig(config=config))
        return created

    async def get_push(self, task: str | Task, id: str = "") -> PushConfig:
        found: PushConfig = await self._ask(GetPushConfig(task_id=id_of(task), id=id))
        return found

    async def list_push(self, task: str | Task) -> Sequence[PushConfig]:
        configs: list[PushConfig] = []
        token = ""
        while True:
            page: PushConfigPage = await self._ask(ListPushConfigs(task_id=id_of(task), page_token=token))
            configs += page.configs
            token = _next_token(token, page)
            if not token:
                return configs

    async def delete_push(self, task: str | Task, id: str) -> None:
        await self._ask(DeletePushConfig(task_id=id_of(task), id=id))

    async def extended_card(self) -> AgentCard:
        """The card that the agent shows to authenticated callers. Until `close`, `card` is this one.

        With `signed_by`, `card` stays the one whose signature was checked.
        """
        link = self.link
        card: AgentCard = await self._ask(GetExtendedCard())
        if self._link is link and link.found.verified is None:
            self._link = link._replace(found=replace(link.found, card=card))
        return card

    # -- internal ----------------------------------------------------------------------------------------------

    def timeout_message(self, task: str = "") -> str:
        """The text of a `TimeoutError`."""
        rest = f"; its task {task} goes on" if task else ""
        return f"{self.card.name!r} did not finish in time{rest}"

    def _deadline(self, timeout: float | None) -> float | None:
        timeout = self._timeout if timeout is None else timeout
        return None if timeout is None else time.time() + timeout

    def remember_question(self, task: Task) -> None:
        """A stream ended with a question."""
        while len(self._questions) >= _MAX_QUESTIONS:
            del self._questions[next(iter(self._questions))]
        self._questions[task.id] = task

    async def _send(self, call: Call, request: SendMessage) -> Reply:
        call, request = prepare(self._options.extensions, call, request)
        result: Task | Message = await self._within(call, self.link.service.call(call, request))
        return Reply.of(self, read_event(self._options.extensions, result))

    async def _batches(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Any]:
        extensions = self._options.extensions
        if isinstance(request, SendMessage):
            call, request = prepare(extensions, call, request)
        try:
            async with aclosing(self.link.service.stream(call, request)) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    yield read_batch(extensions, batch) if extensions else batch
        except Unauthenticated as error:
            raise self._explain(error) from error

    async def _wait(self, task: str, deadline: float | None) -> Reply:
        call = Call(deadline=deadline)
        asked = GetTask(id=task)
        now: Task = await self._within(call, self.link.service.call(call, asked, patient=True))
        if now.state.settled:
            return Reply.of(self, now)
        stream = Stream(self, self._batches(call, SubscribeToTask(id=task)), deadline)
        async with stream:
            async for piece in stream:
                if piece.state.settled:
                    break
        return stream.reply

    async def _ask(self, request: Request, timeout: float | None = None) -> Any:
        call = Call(deadline=self._deadline(timeout))
        return await self._within(call, self.link.service.call(call, request))

    async def _within(self, call: Call, asked: Awaitable[Any]) -> Any:
        """Await a call within its deadline."""
        try:
            if call.deadline is None:
                return await asked
            async with asyncio.timeout(max(0.0, call.deadline - time.time())):
                return await asked
        except TimeoutError:
            raise TimeoutError(self.timeout_message()) from None
        except Unauthenticated as error:
            raise self._explain(error) from error

    def _explain(self, error: Unauthenticated) -> Unauthenticated:
        """Add which credentials the agent asks for, and why it did not get them."""
        schemes = describe_schemes(self.card)
        transport = self.link.transport
        here = transport.origin
        hint = f"; it asks for {schemes}" if schemes else ""
        if schemes and transport.credential is None and transport.certificate_for(self.url) is None:
            hint += ", and no credentials were given"
        if transport.credential is not None and not transport.sends_credential_to(self.url):
            hint += (
                f"; credentials were given for {here} and stayed there: pass origin={self.url!r} to show them"
            )
        return Unauthenticated(
            f"{error.message}{hint}", metadata=error.metadata, retry_after=error.retry_after
        )


def _next_token(token: str, page: TaskPage | PushConfigPage) -> str:
    """The token of the page after this one; empty when there is none."""
    if token and page.next_page_token == token:
        raise InvalidAgentResponse(f"the pages of the list repeat: after {token!r} comes {token!r}")
    return page.next_page_token


def _state(state: TaskState | str) -> TaskState:
    if isinstance(state, TaskState):
        return state
    words = {each.word: each for each in TaskState}
    if state and state not in words:
        raise ValueError(f"there is no state {state!r}: {', '.join(words)}")
    return words[state] if state else TaskState.UNSPECIFIED


def _build_request(
    content: tuple[Any, ...], deadline: float | None, options: SendOptions
) -> tuple[Call, SendMessage]:
    check_options(options, SendOptions, "a message", ("timeout",))
    return build_request(content, deadline, **options)


def connect(target: Any, *, timeout: float | None = None, **options: Unpack[ConnectOptions]) -> Client:
    """Talk to an agent: `async with connect("https://agent.example.com") as agent:`.

    `target`: a base URL, the URL of a card, a card, a file with one, a name from `dragoman.toml`, a name in a catalogue
    (`catalogue://agents.example.com/name`), or an `Agent`.

    `credentials`: a secret (used as the card asks), a `(name, password)`, a credential such as `ClientCredentials(...)`,
    or those by scheme. They go to the origin of `target` only; `origin` names another one. `headers` likewise.
    `version`, `binding`: use only these. `timeout`: for each operation, in seconds, retries included.
    `signed_by`: refuse the agent unless one of these keys has signed its card: a JWK set, a file with one, its URL, a `Trust`.
    `policy`: how often to try again. `tls`, `proxy`: for the network. `agents`: instead of those in `dragoman.toml`.
    `guard`: checks every address before a connection, over every binding. Without it any address is allowed;
    `dragoman.push.Guard()` allows public ones. `cache`: an `AgentCache` of this client's own. `tap`: an async function that is
    called with everything that goes over the wire, credentials included (`client/transport/tap.py`). `extensions`: asked for
    with every message, by URI or as a `ClientExtension`.
    """
    check_options(options, ConnectOptions, "connect", ("timeout",))
    if not isinstance(options.get("version", ""), str):
        raise TypeError('a version is text, such as "1.0"')
    return Client(target, Options(**options), timeout=timeout)


class ConnectedPeers:
    """The remote agents that agents here call: one connection each, opened when first needed.

    `credentials`, by URL or name, are sent to these agents. Credentials of our callers are never passed on.
    """

    def __init__(self, *, credentials: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._credentials = credentials or {}
        self._options = options
        self._open: dict[str, asyncio.Task[Client]] = {}

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        if (opening := self._open.get(name)) is None:
            opening = self._open[name] = asyncio.create_task(self._connect(name))
            opening.add_done_callback(partial(self._opened, name))
        client = await asyncio.shield(opening)
        return client.service, Scope()

    async def close(self) -> None:
        opened, self._open = list(self._open.values()), {}
        for opening in opened:
            opening.cancel()  # those that are still opening
        for client in await asyncio.gather(*opened, return_exceptions=True):
            if isinstance(client, Client):
                await client.close()

    def _opened(self, name: str, opening: asyncio.Task[Client]) -> None:
        """Forget an agent that could not be found: it is looked for again, and callers may name any number of them."""
        failed = opening.cancelled() or opening.exception() is not None
        if failed and self._open.get(name) is opening:
            del self._open[name]

    async def _connect(self, name: str) -> Client:
        options = dict(self._options)
        if (credentials := self._credentials_for(name)) is not None:
            options["credentials"] = credentials
        return await connect(name, **options).open()

    def _credentials_for(self, name: str) -> Any:
        """The credential under this very name, or under the nearest URL above it."""
        if name in self._credentials or "://" not in name:
            return self._credentials.get(name)
        above = [url for url in self._credentials if is_below(name, url)]
        return self._credentials[max(above, key=len)] if above else None
