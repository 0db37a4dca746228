"""Mode `durable`: a task of our engine follows a task of the agent, and writes what that says into its own log.

A message of our caller is one turn. The turn sends it to the agent, to the agent's task if there is one. A message that comes
while the agent works is passed on at once, in the same turn. The turn copies what comes back: artifacts chunk by chunk under their own ids, statuses with their messages, the end. The `child` record says
which task of the agent it is. So everything that our engine does for a task it does for this one: numbered events,
idempotency, lists, push, history.

After a restart the turn runs again, and goes on with the agent's task. A Dragoman server repeats its events, and those that
are in our log are passed over. Of any other agent the task is read, and what our log lacks is added.

A message is sent once. If the answer to it was lost and the agent does not recognise a repeated message, its tasks are
searched for it. If it cannot be found, the task fails and says so. It is not sent again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from hashlib import blake2b, sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.bridge.credentials import CallerAway
from dragoman.bridge.settings import BRIDGE
from dragoman.bridge.upstream import MAX_MESSAGE_CHARS, Upstream
from dragoman.client.deduplicate import missed_events
from dragoman.client.resumable_stream import Stalled
from dragoman.client.retry import can_repeat
from dragoman.engine.delegate import Outcome, cancel_child, make_call, seconds_to_wait
from dragoman.engine.recorded import Recorded
from dragoman.engine.records import PIECE_BYTES, Child, Mail, Record, Snapshot, Step
from dragoman.engine.turn import Turn, record_of
from dragoman.errors import (
    A2AError,
    ContentTypeNotSupported,
    ExtensionRequired,
    Forbidden,
    InvalidAgentResponse,
    ProtocolError,
    TaskNotFound,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UnsupportedOperation,
    VersionNotSupported,
    keep_going,
)
from dragoman.model.content import NOTHING, Message, Role
from dragoman.model.fold import Fold
from dragoman.model.ops import (
    Call,
    Configuration,
    GetTask,
    ListTasks,
    ResumeTask,
    SendMessage,
    StreamResponse,
    SubscribeToTask,
    TaskPage,
)
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman.bridge")

KEY = "call/upstream"
"""What the call of a turn is recorded under."""
FORWARDED = "bridge/forwarded/"
"""Begins the keys of steps that say which messages were passed on to the agent's task while it worked."""
SENT = "bridge/sent"
"""The step that says whether the message of a turn may have been sent."""
_TRUE = msgspec.Raw(b"true")
_ANY_MESSAGE = SendMessage(message=Message(message_id="", parts=("",)))
UNREACHABLE = "The agent behind this bridge cannot be reached."
REFUSES_US = "The agent behind this bridge refuses the credentials of the bridge."
UNREADABLE = "The agent behind this bridge sent an answer that cannot be read."
FORGOTTEN = "The agent behind this bridge does not know its task any more."
CALLER_AWAY = (
    "The agent behind this bridge is called with your own credentials, and the bridge has none of yours now. "
    "Any request of yours with valid credentials lets the task go on."
)
STALLED = (
    "The agent behind this bridge says that it works on its task, but nothing came of it after the connection was lost. "
    "It was told to cancel it. It may have done a part of the work."
)
TOO_MUCH = "The agent behind this bridge said more than one task may hold here, and was stopped."
UNCERTAIN = (
    "The connection to the agent was lost while the message was sent, and the agent cannot say whether it got it. "
    "It was not sent again. Send a new message if it may run twice."
)
_REFUSALS = (
    ProtocolError,
    ContentTypeNotSupported,
    ExtensionRequired,
    UnsupportedOperation,
    VersionNotSupported,
    TaskNotFound,
)
"""Errors of the agent that are about the message."""
_SEARCHED_TASKS, _SEARCHED_CONTEXTS = 200, 20
_MAX_HISTORY = 1000
"""Messages of a task that are compared. The oldest versions send none unless they are told how many."""
_MIN_ID_CHARACTERS = 16
"""Of a message id that can be searched for: shorter ones may be used twice."""


class TooMuch(A2AError):
    """The agent says more than a task may hold."""


class Uncertain(A2AError):
    """A message was sent, perhaps, and its task cannot be found."""


async def follow(turn: Turn, upstream: Upstream, peer: str) -> None:
    """The work of one turn."""
    await _Follower(record_of(turn), upstream, peer, turn.trace).run()


class _Follower:
    def __init__(self, record: Recorded, upstream: Upstream, peer: str, trace: dict[str, str]) -> None:
        self._record, self._upstream, self._peer, self._trace = record, upstream, peer, trace
        self._journal = record.journal
        self._child = record.children.get(KEY)
        """The agent's task that this turn follows, once it is known."""
        record.call_made(KEY)
        self._may_have_sent = SENT in record.steps and record.steps[SENT].value == _TRUE
        """The message may be with the agent, and that is on record. Not for an agent that recognises it if it comes again."""
        self._recorded: list[bytes] = []
        """What is in our log of events that the agent repeats, from `_matched` on."""
        self._matched = 0
        self._end: tuple[TaskStatus, dict[str, Any]] | None = None
        """The status that ends the turn, if it is the last one."""
        self._message: Message | None = None
        self._progress = False
        self._bytes = 0
        """Of the records that this run wrote."""
        self._named = asyncio.Event()
        """The agent has named its task."""
        if self._child is not None:
            self._named.set()
        self._forwarding: asyncio.Task[None] | None = None
        self._mail_came = self._refused_mail = self._answered = False

    async def run(self) -> None:
        try:
            with self._journal.listen(self._on_wake):
                if self._journal.loaded.mails[-1][0] > self._record.read:
                    self._on_wake(())
                await self._follow()
        finally:
            if self._forwarding is not None:
                self._forwarding.cancel()

    async def _follow(self) -> None:
        record = self._record
        attempt, since = 0, time.monotonic()
        while True:
            try:
                await self._read()
                if await self._was_answered():
                    continue
                break
            except CallerAway as error:
                if not await self._wait_for_caller():
                    await self._fail(error)
                    return
                attempt, since = 0, time.monotonic()
            except A2AError as error:
                if self._progress:
                    attempt, since, self._progress = 0, time.monotonic(), False
                attempt += 1
                seconds = self._seconds_to_wait(error, attempt)
                left = self._upstream.settings.wait - (time.monotonic() - since)
                if (deadline := record.mail.deadline) is not None:
                    left = min(left, deadline - time.time())
                if seconds is None or seconds > left:
                    if not await self._has_ended(error):
                        await self._fail(error)
                    return
                if attempt == 1:
                    logger.warning(
                        "task %s: waiting up to %.0f s for %s: %s",
                        record.task_id, left, self._upstream.name, error.message,
                    )  # fmt: skip
                    record.show()  # who does not wait for the end may know that it was accepted
                await asyncio.sleep(seconds)
        await self._finish()

    async def _wait_for_caller(self) -> bool:
        """The agent wants the caller's own credential, and we have none: say so, and wait until the caller has been here.

        False if the caller's time is over.
        """
        record, journal = self._record, self._journal
        record.show()
        await journal.commit()
        if journal.snapshot.status.state is not TaskState.AUTH_REQUIRED:
            # Not the end of the turn: who runs it after a crash runs it again, as after any other record.
            said = record.status_record(TaskState.AUTH_REQUIRED, record.message(CALLER_AWAY), kind="ask")
            journal.put(journal.change(said))
            await journal.commit()
        call = make_call(record, record.scope, KEY, self._trace, record.mail.extensions)
        deadline = record.mail.deadline
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.time())):
                await self._upstream.wait_for_caller(call)
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if self._child is not None and record.cancelled:
                await cancel_child(self._upstream, call, self._child)
            raise
        journal.put(journal.change(record.status_record(TaskState.WORKING)))
        return True

    async def _has_ended(self, error: A2AError) -> bool:
        """True if the agent refused a message because its task had ended before that came. Then ours has ended so, too."""
        known = self._journal.loaded.delegated.get(self._peer)
        if self._child is not None or known is None or not isinstance(error, _REFUSALS):
            return False
        call = make_call(self._record, self._record.scope, KEY, self._trace)
        try:
            task: Task = await self._upstream.call(call, _get(known))
        except A2AError:
            return False
        if not task.state.terminal:
            return False
        self._child = known
        await self._write_task(task)
        await self._finish()
        return True

    def _seconds_to_wait(self, error: A2AError, attempt: int) -> float | None:
        seconds = seconds_to_wait(error, attempt)
        resumes = self._child is not None or self._may_have_sent
        away: tuple[type[A2AError], ...] = (Unreachable, Unavailable)
        if len(self._upstream.settings.addresses) > 1:
            away += (TaskNotFound,)  # another server answered, which does not have the task
        if seconds is None and resumes and isinstance(error, away):
            seconds = min(0.2 * 2 ** min(attempt - 1, 8), 5.0)
        return seconds

    # -- messages that come meanwhile --------------------------------------------------------------------------

    def _on_wake(self, records: Sequence[Record]) -> None:
        """The log got something that we have not written: perhaps a message for the same task."""
        if records:
            return
        self._mail_came = True
        if self._forwarding is None or self._forwarding.done():
            self._forwarding = asyncio.create_task(self._forward_mail())

    async def _forward_mail(self) -> None:
        """Send what comes while the agent works to its task, at once. What it refuses is for the next turn."""
        await self._named.wait()
        record = self._record
        while self._mail_came and not self._refused_mail:
            self._mail_came = False
            with keep_going(logger, f"task {record.task_id}: a message could not be passed on", A2AError):
                snapshot = await self._journal.log.load(record.task_id)
                for seq, mail in snapshot.mails:
                    if seq > record.read:
                        self._refused_mail = True  # unless it works
                        await self._forward(seq, mail)
                        self._refused_mail = False

    async def _forward(self, seq: int, mail: Mail) -> None:
        record, child = self._record, self._child
        assert child is not None
        call = self._call_for(seq)
        message = replace(mail.message, task_id=child.task, context_id=child.context)
        request = SendMessage(
            message=message,
            metadata=mail.metadata,
            configuration=Configuration(
                accepted_output_modes=mail.accepted_output_modes, return_immediately=True
            ),
        )
        sent = False
        if record.resumed and not self._upstream.deduplicates:  # the run before this one may have sent it
            task: Task = await self._upstream.call(call, _get(child))
            sent = any(_is_same(each, message) for each in task.history)
        if not sent:
            await self._upstream.call(call, request)
        step = record.steps[f"{FORWARDED}{seq}"] = Step(key=f"{FORWARDED}{seq}", value=_TRUE, mail=seq)
        record.read = max(record.read, seq)
        self._journal.put(Record("step", step))
        self._answered = True

    async def _was_answered(self) -> bool:
        """True if the agent asked, and a message that was passed on meanwhile may be the answer: its task goes on."""
        if self._forwarding is not None and self._child is not None:
            await asyncio.wait([self._forwarding])
        answered, self._answered = self._answered, False
        if not answered or self._end is None or self._end[0].state.terminal:
            return False
        self._end = None
        return True

    def _call_for(self, seq: int) -> Call:
        """The call that sends the message at `seq`. Its key is the same whoever sends it, and no other message has it."""
        record, scope = self._record, self._record.scope
        identity = (scope.tenant, scope.agent, scope.owner, record.task_id, KEY, seq)
        call = make_call(record, scope, KEY, self._trace, record.mail.extensions)
        return replace(call, idempotency_key=sha256(msgspec.json.encode(identity)).hexdigest()[:32])

    # -- reading -----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read what the agent says, from the message or from where we are, and write it."""
        record, upstream = self._record, self._upstream
        await upstream.card()  # connects: what kind of server it is decides how to go on
        call = self._call_for(record.begins_at)
        if self._child is None and self._may_have_sent and not upstream.deduplicates:
            self._take_child(*await self._find_sent_task(call))
        if self._child is not None:
            events = self._resume(call, self._child)
        else:
            request = await self._request()
            if upstream.is_full:  # who does not wait for the end may know that it was accepted
                record.show()
            await record.may_begin()
            if not upstream.deduplicates:  # after a restart we have to know that it may have been sent
                await record.record(SENT, True)
                self._may_have_sent = True
            events = self._send(call, request)
        try:
            async with aclosing(events):
                async for response in events:
                    self._progress = True
                    await self._write(response)
                    if self._bytes > self._upstream.settings.max_task_mb << 20:
                        await self._stop_upstream(call)
                        raise TooMuch(TOO_MUCH)
                    if self._journal.full:
                        await self._journal.commit()
                    if self._end is not None and self._end[0].state is TaskState.AUTH_REQUIRED:
                        break  # the stream may stay open until somebody grants it
        except (asyncio.CancelledError, GeneratorExit):
            if record.cancelled:
                await self._stop_upstream(call)
            raise
        except A2AError as error:
            if isinstance(error, Stalled):
                await self._stop_upstream(call)  # or it might go on after we said that it failed
            refused = isinstance(error, CallerAway) or can_repeat(error, _ANY_MESSAGE, deduplicates=False)
            if self._child is None and self._may_have_sent and refused:
                await record.record(SENT, False)
                self._may_have_sent = False
            raise
        if self._end is None and self._message is None:
            raise Unreachable("the stream ended before the task did")

    async def _stop_upstream(self, call: Call) -> None:
        if self._child is not None:
            await cancel_child(self._upstream, call, self._child)

    async def _send(self, call: Call, request: SendMessage) -> AsyncGenerator[StreamResponse, None]:
        try:
            async for batch in self._upstream.stream(call, request):
                for response in batch:
                    yield response
        except UnsupportedOperation:
            if self._progress:
                raise
            yield StreamResponse(await self._upstream.call(call, request))

    async def _resume(self, call: Call, child: Child) -> AsyncGenerator[StreamResponse, None]:
        request: SubscribeToTask = SubscribeToTask(id=child.task)
        forwarded = any(
            key.startswith(FORWARDED) for key in self._record.steps
        )  # an old question is not the end
        if child.after and self._upstream.deduplicates and not forwarded:
            await self._load_recorded()
            call = replace(call, after=child.after)
        else:
            task: Task = await self._upstream.call(call, _get(child))
            yield StreamResponse(task)
            if task.state.over:
                return
            request = ResumeTask(id=child.task, known=task)
        try:
            async for batch in self._upstream.stream(call, request):
                for response in batch:
                    if not self._is_recorded(response.event):
                        yield response
                        if (
                            self._end is not None
                        ):  # a subscription stays open while the agent waits for an answer
                            return
        except UnsupportedOperation:  # it finished between the two questions
            yield StreamResponse(await self._upstream.call(call, _get(child)))
        if self._end is None:  # its last events were in our log
            yield StreamResponse(await self._upstream.call(call, _get(child)))

    async def _load_recorded(self) -> None:
        """Find out what our log has of the events of this turn."""
        await self._journal.commit()
        self._recorded, self._matched, after = [], 0, self._record.begins_at
        log, task = self._journal.log, self._record.task_id
        while records := await log.read(task, after=after, max_bytes=PIECE_BYTES):
            self._recorded += [_digest(record.event) for record in records if _is_copied(record.event)]
            after = records[-1].seq

    def _is_recorded(self, event: Event) -> bool:
        """True if a repeated event is in our log. What comes after the first one that is not, is not either."""
        if self._matched >= len(self._recorded) or not _is_copied(event):
            return False
        try:
            self._matched = self._recorded.index(_digest(event), self._matched) + 1
        except ValueError:
            self._matched = len(self._recorded)
            return False
        return True

    # -- the message that is sent ------------------------------------------------------------------------------

    async def _request(self) -> SendMessage:
        """The caller's message, as the agent gets it: with its own ids of the task and the context."""
        mail, known = self._record.mail, self._journal.loaded.delegated.get(self._peer)
        message = mail.message
        references = tuple([await self._reference(id) for id in message.reference_task_ids])
        return SendMessage(
            message=replace(
                message,
                task_id=known.task if known is not None else "",
                context_id=known.context if known is not None else await self._context(),
                reference_task_ids=references,
            ),
            metadata=mail.metadata,
            configuration=Configuration(accepted_output_modes=mail.accepted_output_modes),
        )

    async def _reference(self, task: str) -> str:
        """The agent's id of another task of the caller; if there is none, what the caller wrote."""
        with suppress(TaskNotFound):
            known = (await self._journal.log.load(task)).delegated.get(self._peer)
            return known.task if known is not None else task
        return task

    async def _context(self) -> str:
        """The agent's id of the context of a new task; empty if that is new, too."""
        snapshot, log = self._journal.loaded, self._journal.log
        if not snapshot.mails[0][1].names_context:
            return ""
        context = self._record.context_id
        found = await log.find(ListTasks(context_id=context), limit=_SEARCHED_CONTEXTS)
        for other in found.snapshots:
            if (known := other.delegated.get(self._peer)) is not None and known.context:
                return known.context
        with suppress(TaskNotFound):  # its first answer was a Message: see `_finish_with_message`
            first = await log.load(context)
            if (step := first.steps.get(KEY)) is not None:
                message = msgspec.json.decode(step.value, type=Outcome).message
                if message is not None and message.context_id:
                    return message.context_id
        owner = self._record.scope
        if not owner.owner:
            return context
        # Two of our callers may have chosen the same id, and the agent cannot tell them apart.
        return sha256(msgspec.json.encode((owner.tenant, owner.owner, context))).hexdigest()[:32]

    async def _find_sent_task(self, call: Call) -> tuple[str, str, int]:
        """The agent's task of a message that may have been sent. Raises `Uncertain` if it cannot be known."""
        sent = (await self._request()).message
        if sent.task_id:  # it went on with this one
            asked = GetTask(id=sent.task_id, history_length=_MAX_HISTORY)
            task: Task = await self._upstream.call(call, asked)
            if any(_is_same(message, sent) for message in task.history):
                return task.id, task.context_id, 0
            raise Uncertain(UNCERTAIN)
        if self._upstream.names_tasks:
            try:
                started: Task = await self._upstream.call(call, GetTask(id=call.idempotency_key))
            except TaskNotFound:
                raise Uncertain(UNCERTAIN) from None
            return started.id, started.context_id, 0
        if len(sent.message_id) < _MIN_ID_CHARACTERS:
            raise Uncertain(UNCERTAIN)
        found: list[Task] = []
        query = ListTasks(context_id=sent.context_id, page_size=50, history_length=_MAX_HISTORY)
        seen = 0
        while seen < _SEARCHED_TASKS:
            try:
                page: TaskPage = await self._upstream.call(call, query)
            except (UnsupportedOperation, ProtocolError):
                raise Uncertain(UNCERTAIN) from None
            found += [task for task in page.tasks if any(_is_same(m, sent) for m in task.history)]
            seen += len(page.tasks)
            if not page.next_page_token or not page.tasks:
                break
            query = replace(query, page_token=page.next_page_token)
        if len(found) != 1:
            raise Uncertain(UNCERTAIN)
        return found[0].id, found[0].context_id, 0

    # -- writing -----------------------------------------------------------------------------------------------

    async def _write(self, response: StreamResponse) -> None:
        event, record = response.event, self._record
        if isinstance(event, Message):
            self._message = event
            return
        if self._child is None:
            id = event.id if isinstance(event, Task) else event.task_id
            self._take_child(id, event.context_id, response.seq if self._upstream.deduplicates else 0)
        record.show()
        if isinstance(event, ArtifactUpdate):
            self._put("artifact", replace(event, task_id=record.task_id, context_id=record.context_id))
        elif isinstance(event, StatusUpdate):
            self._write_status(event.status, event.metadata)
        else:
            await self._write_task(event)

    def _take_child(self, task: str, context: str, after: int) -> None:
        """The agent's task is known: put it on record, before anything that it says."""
        if not task:
            raise InvalidAgentResponse("the agent sent an event without a task id")
        self._child = Child(key=KEY, peer=self._peer, task=task, context=context, after=after)
        self._record.children[KEY] = self._child
        self._named.set()
        self._journal.put(Record("child", self._child))

    def _put(self, kind: str, event: Event) -> None:
        self._put_record(Record(kind, event))  # type: ignore[arg-type]

    def _put_record(self, record: Record) -> None:
        record = self._journal.change(record)
        self._journal.put(record)
        self._bytes += len(record.raw)

    def _write_status(self, status: TaskStatus, metadata: dict[str, Any]) -> None:
        if status.state.over:
            self._end = status, metadata
            return
        self._end = None
        if status.message is not None or metadata:
            message = self._own(status.message) if status.message is not None else None
            self._put_record(self._record.status_record(TaskState.WORKING, message, metadata))

    def _own(self, message: Message) -> Message:
        """A message of the agent, as one of our task."""
        record = self._record
        if not message.message_id:  # 0.1
            message = replace(message, message_id=record.message(message.parts).message_id)
        return replace(message, role=Role.AGENT, task_id=record.task_id, context_id=record.context_id)

    async def _write_task(self, task: Task) -> None:
        """Write what a task of the agent has beyond what our log has."""
        said_nothing = task.status.message is None and not any(m.role is Role.AGENT for m in task.history)
        if said_nothing and not task.artifacts and not task.metadata:
            self._write_status(task.status, NOTHING)
            return
        await self._journal.commit()
        snapshot = self._journal.snapshot
        known = _Messages(snapshot)
        current = task.status.message
        for message in task.history:
            if message.role is Role.AGENT and message != current and not known.take(message):
                self._write_status(TaskStatus(state=TaskState.WORKING, message=message), NOTHING)
        for event in missed_events(_fold_of(snapshot, task.status), task):
            self._put(
                "artifact",
                replace(event, task_id=self._record.task_id, context_id=self._record.context_id),
            )
        news = {name: value for name, value in task.metadata.items() if snapshot.metadata.get(name) != value}
        status = task.status
        if current is not None and not status.state.over and known.take(current):
            status = replace(status, message=None)
        self._write_status(status, news or NOTHING)

    # -- the end -----------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        if self._message is not None:
            await self._finish_with_message(self._message)
            return
        assert self._end is not None and self._child is not None
        status, metadata = self._end
        message = self._own(status.message) if status.message is not None else None
        self._record.final = (status.state, message, metadata)
        ended = Task(
            id=self._child.task, context_id=self._child.context, status=TaskStatus(state=status.state)
        )
        self._put_outcome(Outcome(task=ended))

    async def _finish_with_message(self, message: Message) -> None:
        """The agent answered with a Message, which belongs to no task of it."""
        record = self._record
        self._put_outcome(Outcome(message=Message(context_id=message.context_id, role=Role.AGENT, parts=())))
        if record.visible:
            record.final = (TaskState.COMPLETED, self._own(message), {})
            return
        # Our task stays hidden. Its id as the context's lets the next message find it, and the agent's context in it.
        context = record.context_id if record.mail.names_context else record.task_id
        record.reply = replace(record.message(message), context_id=context, metadata=message.metadata)

    def _put_outcome(self, outcome: Outcome) -> None:
        step = Step(key=KEY, value=msgspec.Raw(msgspec.json.encode(outcome)))
        self._record.steps[KEY] = step
        self._journal.put(Record("step", step))

    async def _fail(self, error: A2AError) -> None:
        record = self._record
        logger.warning("task %s: %s failed: %s", record.task_id, self._upstream.name, error.message)
        state, why = TaskState.FAILED, UNREACHABLE
        if isinstance(error, Uncertain | TooMuch):
            why = error.message
        elif isinstance(error, Stalled):
            why = STALLED
        elif isinstance(error, TaskNotFound) and self._child is not None:
            why = FORGOTTEN
        elif isinstance(error, Unauthenticated | Forbidden) and not self._upstream.shows_callers:
            why = REFUSES_US
        elif isinstance(error, (*_REFUSALS, Unauthenticated, Forbidden)):
            state, why = TaskState.REJECTED, error.message
        elif isinstance(error, InvalidAgentResponse):
            why = UNREADABLE
        elif not isinstance(error, Unreachable | Unavailable):
            why = error.message
        record.show()
        about = {BRIDGE: {"error": error.reason}}
        record.final = (state, record.message(why[:MAX_MESSAGE_CHARS]), about)


def _is_copied(event: Any) -> bool:
    """True if an event of the agent becomes a record of its own."""
    if isinstance(event, ArtifactUpdate):
        return True
    if not isinstance(event, StatusUpdate) or event.status.state.over:
        return False
    return event.status.message is not None or bool(event.metadata)


def _digest(event: Any) -> bytes:
    """The same for an event of the agent and for the record of it."""
    if isinstance(event, ArtifactUpdate):
        event = replace(event, task_id="", context_id="")
    else:
        message = event.status.message
        if message is not None:
            message = replace(message, message_id="", task_id="", context_id="", role=Role.AGENT)
        status = TaskStatus(state=TaskState.WORKING, message=message)
        event = StatusUpdate(task_id="", context_id="", status=status, metadata=event.metadata)
    return blake2b(msgspec.json.encode(event), digest_size=12).digest()


def _get(child: Child) -> GetTask:
    return GetTask(id=child.task, history_length=_MAX_HISTORY)


class _Messages:
    """The messages that our log has of the agent. One without an id (0.1) is known by its content, as often as it is there."""

    def __init__(self, snapshot: Snapshot) -> None:
        said = [message for message in snapshot.history if message.role is Role.AGENT]
        if snapshot.status.message is not None:
            said.append(snapshot.status.message)
        self._ids = {message.message_id for message in said}
        self._contents = Counter(msgspec.json.encode(message.parts) for message in said)

    def take(self, message: Message) -> bool:
        """True if our log has it. Otherwise it counts as known from now on."""
        if message.message_id:
            known = message.message_id in self._ids
            self._ids.add(message.message_id)
            return known
        content = msgspec.json.encode(message.parts)
        self._contents[content] -= 1
        return self._contents[content] >= 0


def _is_same(one: Message, sent: Message) -> bool:
    return one.message_id == sent.message_id and one.parts == sent.parts


def _fold_of(snapshot: Snapshot, status: TaskStatus) -> Fold:
    """What we have of the agent's artifacts. Its status is compared elsewhere."""
    fold = Fold()
    fold.status = status
    fold.artifacts = dict(snapshot.artifacts)
    return fold
