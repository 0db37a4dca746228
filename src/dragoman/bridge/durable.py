"""Mode `durable`: a task of our engine follows a task of the agent, and copies its events into its own log.

A message of our caller is one turn. The turn sends it to the agent, to the agent's task if there is one. A message that comes while the
agent works is forwarded at once, in the same turn. The turn copies what the agent sends: artifacts chunk by chunk under their own ids,
statuses with their messages, the end. The `child` record names the agent's task. So our engine does for this task what it does for any
other: numbered events, idempotency, lists, push, history.

After a restart the turn runs again, and continues with the agent's task. A Dragoman server repeats its events; those that are in our log
are skipped. From any other agent the task is read, and what our log lacks is added.

A message is sent once. If its answer was lost, and the agent does not recognise a repeated message, the agent's tasks are searched for
the message. If it is not found, our task fails with that reason. The message is not sent again.
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

from dragoman.bridge.credentials import NoCallerCredentials
from dragoman.bridge.settings import BRIDGE
from dragoman.bridge.upstream import MAX_MESSAGE_CHARS, Upstream
from dragoman.client.deduplicate import missed_events
from dragoman.client.resumable_stream import Stalled
from dragoman.client.retry import can_repeat
from dragoman.engine.delegate import CallResult, cancel_child, make_call, seconds_to_wait
from dragoman.engine.recorded import Recorded
from dragoman.engine.records import PIECE_BYTES, Child, Mail, Record, Step
from dragoman.engine.snapshot import Snapshot
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

CALL_KEY = "call/upstream"
"""The key under which the call of a turn is recorded."""
FORWARDED_PREFIX = "bridge/forwarded/"
"""Prefix of the keys of steps that record which messages were forwarded to the agent's task while it worked."""
SENT_STEP = "bridge/sent"
"""The key of the step that records whether the message of a turn may have been sent."""
_TRUE = msgspec.Raw(b"true")
_ANY_MESSAGE = SendMessage(message=Message(message_id="", parts=("",)))
UNREACHABLE = "The agent behind this bridge cannot be reached."
REFUSES_US = "The agent behind this bridge refuses the credentials of the bridge."
UNREADABLE = "The agent behind this bridge sent an answer that cannot be read."
FORGOTTEN = "The agent behind this bridge does not know its task any more."
NO_CALLER_CREDENTIALS = (
    "The agent behind this bridge is called with your own credentials, and the bridge has none of yours now. "
    "The task continues after any request of yours with valid credentials."
)
STALLED = (
    "The agent behind this bridge says that it works on its task, but has sent nothing since the connection was lost. "
    "It was asked to cancel the task. It may have done a part of the work."
)
TOO_LARGE = (
    "The agent behind this bridge sent more than one task may store here, and was asked to cancel its task."
)
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
"""Errors with which an agent refuses a message."""
_SEARCHED_TASKS, _SEARCHED_CONTEXTS = 200, 20
_MAX_HISTORY = 1000
"""Messages of a task that are read for a comparison. The oldest versions send none unless the request says how many."""
_MIN_ID_CHARACTERS = 16
"""The shortest message id that is searched for: shorter ids may not be unique."""


class TaskTooLarge(A2AError):
    """The agent sent more than a task may store."""


class DeliveryUncertain(A2AError):
    """A message may have been sent, and its task cannot be found."""


async def follow(turn: Turn, upstream: Upstream, peer: str) -> None:
    """The work of one turn."""
    await _Follower(record_of(turn), upstream, peer, turn.trace).run()


class _Follower:
    def __init__(self, record: Recorded, upstream: Upstream, peer: str, trace: dict[str, str]) -> None:
        self._record, self._upstream, self._peer, self._trace = record, upstream, peer, trace
        self._journal = record.journal
        self._child = record.children.get(CALL_KEY)
        """The agent's task that this turn follows, once it is known."""
        record.note_call(CALL_KEY)
        self._may_have_sent = SENT_STEP in record.steps and record.steps[SENT_STEP].value == _TRUE
        """It is recorded that the agent may have got the message. Always false for an agent that recognises a repeated message."""
        self._recorded: list[bytes] = []
        """Digests of the events in our log that the agent repeats."""
        self._matched = 0
        """How many of them it has repeated."""
        self._end: tuple[TaskStatus, dict[str, Any]] | None = None
        """The status that ends the turn, if it is the last one."""
        self._message: Message | None = None
        self._progress = False
        self._bytes = 0
        """Bytes of the records that this run wrote."""
        self._child_known = asyncio.Event()
        """The agent has named its task."""
        if self._child is not None:
            self._child_known.set()
        self._forwarding: asyncio.Task[None] | None = None
        self._has_mail = False
        """The log may have messages that are not forwarded."""
        self._mail_refused = False
        """The agent refused a message: it is for the next turn."""
        self._answered = False
        """A message was forwarded: it may be the answer to a question."""

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
            except NoCallerCredentials as error:
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
                    record.show()  # a caller that does not wait for the end gets the task now
                await asyncio.sleep(seconds)
        await self._finish()

    async def _wait_for_caller(self) -> bool:
        """The agent needs the caller's own credentials, and none are stored: ask for them, and wait until the caller sends a request.

        False if the deadline of the caller is over.
        """
        record, journal = self._record, self._journal
        record.show()
        await journal.commit()
        if journal.snapshot.status.state is not TaskState.AUTH_REQUIRED:
            # Not the end of the turn: who runs it after a crash runs it again, as after any other record.
            status = record.status_record(
                TaskState.AUTH_REQUIRED, record.message(NO_CALLER_CREDENTIALS), kind="ask"
            )
            journal.put(journal.change(status))
            await journal.commit()
        call = make_call(record, record.scope, CALL_KEY, self._trace, record.mail.extensions)
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
        """True if the agent refused a message because its task had ended before. Then our task ends in the same way."""
        known = self._journal.loaded.delegated.get(self._peer)
        if self._child is not None or known is None or not isinstance(error, _REFUSALS):
            return False
        call = make_call(self._record, self._record.scope, CALL_KEY, self._trace)
        try:
            task: Task = await self._upstream.call(call, _get_request(known))
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
        retried: tuple[type[A2AError], ...] = (Unreachable, Unavailable)
        if len(self._upstream.settings.addresses) > 1:
            retried += (TaskNotFound,)  # another server answered, which does not have the task
        if seconds is None and resumes and isinstance(error, retried):
            seconds = min(0.2 * 2 ** min(attempt - 1, 8), 5.0)
        return seconds

    # -- messages that come meanwhile --------------------------------------------------------------------------

    def _on_wake(self, records: Sequence[Record]) -> None:
        """Somebody else wrote to the log: perhaps a message for the same task."""
        if records:
            return
        self._has_mail = True
        if self._forwarding is None or self._forwarding.done():
            self._forwarding = asyncio.create_task(self._forward_mail())

    async def _forward_mail(self) -> None:
        """Forward messages that come while the agent works. Those that it refuses are for the next turn."""
        await self._child_known.wait()
        record = self._record
        while self._has_mail and not self._mail_refused:
            self._has_mail = False
            with keep_going(logger, f"task {record.task_id}: a message could not be passed on", A2AError):
                snapshot = await self._journal.log.load(record.task_id)
                for seq, mail in snapshot.mails:
                    if seq > record.read:
                        self._mail_refused = True  # unless `_forward` returns
                        await self._forward(seq, mail)
                        self._mail_refused = False

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
            task: Task = await self._upstream.call(call, _get_request(child))
            sent = any(_is_same(each, message) for each in task.history)
        if not sent:
            await self._upstream.call(call, request)
        step = record.steps[f"{FORWARDED_PREFIX}{seq}"] = Step(
            key=f"{FORWARDED_PREFIX}{seq}", value=_TRUE, mail=seq
        )
        record.read = max(record.read, seq)
        self._journal.put(Record("step", step))
        self._answered = True

    async def _was_answered(self) -> bool:
        """True if the agent asked, and a message that was forwarded meanwhile may be the answer: its task continues."""
        if self._forwarding is not None and self._child is not None:
            await asyncio.wait([self._forwarding])
        answered, self._answered = self._answered, False
        if not answered or self._end is None or self._end[0].state.terminal:
            return False
        self._end = None
        return True

    def _call_for(self, seq: int) -> Call:
        """The call that sends the message at `seq`. Its idempotency key is the same in every run, and unique for the message."""
        record, scope = self._record, self._record.scope
        identity = (scope.tenant, scope.agent, scope.owner, record.task_id, CALL_KEY, seq)
        call = make_call(record, scope, CALL_KEY, self._trace, record.mail.extensions)
        return replace(call, idempotency_key=sha256(msgspec.json.encode(identity)).hexdigest()[:32])

    # -- reading -----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Send the message, or continue with the agent's task, and write the events of the agent."""
        record, upstream = self._record, self._upstream
        await upstream.card()  # connects: what kind of server it is decides how to go on
        call = self._call_for(record.begins_at)
        if self._child is None and self._may_have_sent and not upstream.deduplicates:
            sent = await self._find_sent_task(call)
            self._record_child(sent.id, sent.context_id)
        if self._child is not None:
            events = self._resume(call, self._child)
        else:
            request = await self._request()
            if upstream.is_full:  # a caller that does not wait for the end gets the task now
                record.show()
            await record.may_begin()
            if not upstream.deduplicates:  # after a restart we have to know that it may have been sent
                await record.record_step(SENT_STEP, True)
                self._may_have_sent = True
            events = self._send(call, request)
        try:
            async with aclosing(events):
                async for response in events:
                    self._progress = True
                    await self._write(response)
                    if self._bytes > self._upstream.settings.max_task_mb << 20:
                        await self._stop_upstream(call)
                        raise TaskTooLarge(TOO_LARGE)
                    if self._journal.full:
                        await self._journal.commit()
                    if self._end is not None and self._end[0].state is TaskState.AUTH_REQUIRED:
                        break  # the stream may stay open until the authentication is complete
        except (asyncio.CancelledError, GeneratorExit):
            if record.cancelled:
                await self._stop_upstream(call)
            raise
        except A2AError as error:
            if isinstance(error, Stalled):
                await self._stop_upstream(call)  # otherwise it might continue after our task has failed
            refused = isinstance(error, NoCallerCredentials) or can_repeat(
                error, _ANY_MESSAGE, deduplicates=False
            )
            if self._child is None and self._may_have_sent and refused:
                await record.record_step(SENT_STEP, False)
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
        # An old question is not the end.
        forwarded = any(key.startswith(FORWARDED_PREFIX) for key in self._record.steps)
        if child.after and self._upstream.deduplicates and not forwarded:
            await self._load_recorded()
            call = replace(call, after=child.after)
        else:
            task: Task = await self._upstream.call(call, _get_request(child))
            yield StreamResponse(task)
            if task.state.settled:
                return
            request = ResumeTask(id=child.task, known=task)
        try:
            async for batch in self._upstream.stream(call, request):
                for response in batch:
                    if not self._is_recorded(response.event):
                        yield response
                        # A subscription stays open while the agent waits for an answer.
                        if self._end is not None:
                            return
        except UnsupportedOperation:  # it finished between the two requests
            yield StreamResponse(await self._upstream.call(call, _get_request(child)))
        if self._end is None:  # its last events were in our log
            yield StreamResponse(await self._upstream.call(call, _get_request(child)))

    async def _load_recorded(self) -> None:
        """Load the digests of the agent's events that our log has of this turn."""
        await self._journal.commit()
        self._recorded, self._matched, after = [], 0, self._record.begins_at
        log, task = self._journal.log, self._record.task_id
        while records := await log.read(task, after=after, max_bytes=PIECE_BYTES):
            self._recorded += [_digest(record.event) for record in records if _is_copied(record.event)]
            after = records[-1].seq

    def _is_recorded(self, event: Event) -> bool:
        """True if a repeated event is in our log. After the first event that is not in it, no event is."""
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
        """The caller's message for the agent: with the agent's ids of the task and the context."""
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
            if (step := first.steps.get(CALL_KEY)) is not None:
                message = msgspec.json.decode(step.value, type=CallResult).message
                if message is not None and message.context_id:
                    return message.context_id
        owner = self._record.scope
        if not owner.owner:
            return context
        # Callers may choose the same id, and the agent cannot tell them apart.
        return sha256(msgspec.json.encode((owner.tenant, owner.owner, context))).hexdigest()[:32]

    async def _find_sent_task(self, call: Call) -> Task:
        """The agent's task of a message that may have been sent. Raises `DeliveryUncertain` if it cannot be known."""
        sent = (await self._request()).message
        if sent.task_id:  # it went on with this one
            asked = GetTask(id=sent.task_id, history_length=_MAX_HISTORY)
            task: Task = await self._upstream.call(call, asked)
            if any(_is_same(message, sent) for message in task.history):
                return task
            raise DeliveryUncertain(UNCERTAIN)
        if self._upstream.names_tasks:
            try:
                started: Task = await self._upstream.call(call, GetTask(id=call.idempotency_key))
            except TaskNotFound:
                raise DeliveryUncertain(UNCERTAIN) from None
            return started
        if len(sent.message_id) < _MIN_ID_CHARACTERS:
            raise DeliveryUncertain(UNCERTAIN)
        found: list[Task] = []
        query = ListTasks(context_id=sent.context_id, page_size=50, history_length=_MAX_HISTORY)
        seen = 0
        while seen < _SEARCHED_TASKS:
            try:
                page: TaskPage = await self._upstream.call(call, query)
            except (UnsupportedOperation, ProtocolError):
                raise DeliveryUncertain(UNCERTAIN) from None
            found += [task for task in page.tasks if any(_is_same(m, sent) for m in task.history)]
            seen += len(page.tasks)
            if not page.next_page_token or not page.tasks:
                break
            query = replace(query, page_token=page.next_page_token)
        if len(found) != 1:
            raise DeliveryUncertain(UNCERTAIN)
        return found[0]

    # -- writing -----------------------------------------------------------------------------------------------

    async def _write(self, response: StreamResponse) -> None:
        event, record = response.event, self._record
        if isinstance(event, Message):
            self._message = event
            return
        if self._child is None:
            id = event.id if isinstance(event, Task) else event.task_id
            self._record_child(id, event.context_id, response.seq if self._upstream.deduplicates else 0)
        record.show()
        if isinstance(event, ArtifactUpdate):
            self._put_artifact(event)
        elif isinstance(event, StatusUpdate):
            self._write_status(event.status, event.metadata)
        else:
            await self._write_task(event)

    def _record_child(self, task: str, context: str, after: int = 0) -> None:
        """Record the agent's task, before any of its events."""
        if not task:
            raise InvalidAgentResponse("the agent sent an event without a task id")
        self._child = Child(key=CALL_KEY, peer=self._peer, task=task, context=context, after=after)
        self._record.children[CALL_KEY] = self._child
        self._child_known.set()
        self._journal.put(Record("child", self._child))

    def _put_artifact(self, event: Event) -> None:
        ours = replace(event, task_id=self._record.task_id, context_id=self._record.context_id)
        self._write_record(Record("artifact", ours))  # type: ignore[arg-type]

    def _write_record(self, record: Record) -> None:
        record = self._journal.change(record)
        self._journal.put(record)
        self._bytes += len(record.raw)

    def _write_status(self, status: TaskStatus, metadata: dict[str, Any]) -> None:
        if status.state.settled:
            self._end = status, metadata
            return
        self._end = None
        if status.message is not None or metadata:
            message = self._to_own_message(status.message) if status.message is not None else None
            self._write_record(self._record.status_record(TaskState.WORKING, message, metadata))

    def _to_own_message(self, message: Message) -> Message:
        """A message of the agent as a message of our task."""
        record = self._record
        if not message.message_id:  # 0.1
            message = replace(message, message_id=record.message(message.parts).message_id)
        return replace(message, role=Role.AGENT, task_id=record.task_id, context_id=record.context_id)

    async def _write_task(self, task: Task) -> None:
        """Write what a task of the agent has and our log lacks."""
        is_empty = task.status.message is None and not any(m.role is Role.AGENT for m in task.history)
        if is_empty and not task.artifacts and not task.metadata:
            self._write_status(task.status, NOTHING)
            return
        await self._journal.commit()
        snapshot = self._journal.snapshot
        known = _KnownMessages(snapshot)
        current = task.status.message
        for message in task.history:
            if message.role is Role.AGENT and message != current and not known.add(message):
                self._write_status(TaskStatus(state=TaskState.WORKING, message=message), NOTHING)
        for event in missed_events(_fold_of(snapshot, task.status), task):
            self._put_artifact(event)
        news = {name: value for name, value in task.metadata.items() if snapshot.metadata.get(name) != value}
        status = task.status
        if current is not None and not status.state.settled and known.add(current):
            status = replace(status, message=None)
        self._write_status(status, news or NOTHING)

    # -- the end -----------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        if self._message is not None:
            await self._finish_with_message(self._message)
            return
        assert self._end is not None and self._child is not None
        status, metadata = self._end
        message = self._to_own_message(status.message) if status.message is not None else None
        self._record.final = (status.state, message, metadata)
        ended = Task(
            id=self._child.task, context_id=self._child.context, status=TaskStatus(state=status.state)
        )
        self._put_outcome(CallResult(task=ended))

    async def _finish_with_message(self, message: Message) -> None:
        """The agent answered with a Message, which belongs to no task of it."""
        record = self._record
        self._put_outcome(
            CallResult(message=Message(context_id=message.context_id, role=Role.AGENT, parts=()))
        )
        if record.visible:
            record.final = (TaskState.COMPLETED, self._to_own_message(message), {})
            return
        # Our task stays hidden. Its id becomes that of the context, so the next message finds it, and in it the agent's context.
        context = record.context_id if record.mail.names_context else record.task_id
        record.reply = replace(record.message(message), context_id=context, metadata=message.metadata)

    def _put_outcome(self, outcome: CallResult) -> None:
        step = Step(key=CALL_KEY, value=msgspec.Raw(msgspec.json.encode(outcome)))
        self._record.steps[CALL_KEY] = step
        self._journal.put(Record("step", step))

    async def _fail(self, error: A2AError) -> None:
        record = self._record
        logger.warning("task %s: %s failed: %s", record.task_id, self._upstream.name, error.message)
        state, why = TaskState.FAILED, UNREACHABLE
        if isinstance(error, DeliveryUncertain | TaskTooLarge):
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
    if not isinstance(event, StatusUpdate) or event.status.state.settled:
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


def _get_request(child: Child) -> GetTask:
    return GetTask(id=child.task, history_length=_MAX_HISTORY)


class _KnownMessages:
    """The messages of the agent in our log. Messages without an id (0.1) are compared by their content, each as often as it occurs."""

    def __init__(self, snapshot: Snapshot) -> None:
        messages = [message for message in snapshot.history if message.role is Role.AGENT]
        if snapshot.status.message is not None:
            messages.append(snapshot.status.message)
        self._ids = {message.message_id for message in messages}
        self._contents = Counter(msgspec.json.encode(message.parts) for message in messages)

    def add(self, message: Message) -> bool:
        """True if a message is known. Otherwise it is from now on."""
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
    """The artifacts that our log has of the agent. The status is compared separately."""
    fold = Fold()
    fold.status = status
    fold.artifacts = dict(snapshot.artifacts)
    return fold
