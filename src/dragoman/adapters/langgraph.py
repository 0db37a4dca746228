"""LangGraph: a graph, or a function with `@entrypoint`.

The graph's checkpoints go to the task's log. A checkpointer that the graph was compiled with is not used.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Unpack, get_type_hints

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph import func
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt

from dragoman.adapters import events
from dragoman.adapters.adapter import Adapter, Convert, Instances, Start, as_json, ask_approval, text_in
from dragoman.adapters.events import AnyEvent
from dragoman.adapters.remote_agent import Outcome, RemoteAgent
from dragoman.client.connection import ConnectOptions
from dragoman.errors import InvalidParams
from dragoman.model.content import Message
from dragoman.model.usage import TokenUsage

__all__ = ["agent_as_tool"]

_MODES = ["messages", "updates", "custom", "checkpoints"]
_QUESTION_SEPARATOR = "#"
"""Between the id of an interrupt and the number of its question."""
_BREAKPOINT = "next"
"""The id of the question of a graph that stopped at a breakpoint."""


class LangGraphAdapter(Adapter):
    def __init__(self, objects: Instances, input: Convert, output: Convert) -> None:
        super().__init__(objects, input, output)
        graph = objects.first
        self._graph = graph if isinstance(graph, Pregel) else graph.compile()

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        saver = LogSaver(start.state)
        graph = self._graph.copy({"checkpointer": saver})
        options = dict(start.options)
        config = dict(options.pop("config", None) or {})
        config["configurable"] = {**config.get("configurable", {}), "thread_id": start.turn.context_id}
        run_input: Any = None  # it continues where it was interrupted
        if start.message is not None:
            run_input = self._input(start.message)
        elif _BREAKPOINT in start.answers:
            if not start.answers[_BREAKPOINT].value:
                yield events.Finished(state=saver.dump(finished=True), failed="The caller stopped it.")
                return
        elif start.answers:
            run_input = Command(resume=_resume_values(start.answers))
        converter = _EventConverter()
        stream = graph.astream(
            run_input, config, stream_mode=_MODES, subgraphs=True, durability="sync", **options
        )
        async with aclosing(stream):
            async for namespace, mode, content in stream:
                if mode == "messages":
                    for event in converter.convert_message(*content):
                        yield event
                elif mode == "updates":
                    for event in converter.convert_update(content):
                        yield event
                elif mode == "custom":
                    yield _progress(content)
                elif not namespace and content["metadata"].get("source") == "loop" and content["next"]:
                    yield events.Saved(state=saver.dump())
        state = await graph.aget_state(config, subgraphs=False)
        if questions := tuple(_questions(state)):
            yield events.Paused(questions=questions, state=saver.dump())
            return
        if self._output is None:
            for event in self._unsent_answer(state.values, converter):
                yield event
        for event in self.finish(saver.dump(finished=True), state.values):
            yield event

    def default_input(self, message: Message) -> Any:
        """A message for the graph: as one of `messages`, as the state that its data gives, or as the only text."""
        fields = self._input_fields()
        if "messages" in fields:
            data = message.data if isinstance(message.data, dict) else {}
            more = {name: value for name, value in data.items() if name in fields and name != "messages"}
            return {"messages": [HumanMessage(content=content_of(message, without_data=bool(more)))], **more}
        if message.data is not None:
            return message.data
        if not fields:
            return message.text
        texts = [name for name, kind in fields.items() if kind is str]
        if len(texts) != 1:
            raise InvalidParams(f"send data with {', '.join(fields)}")
        return {texts[0]: message.text}

    def _input_fields(self) -> dict[str, Any]:
        """The fields of the state that the graph begins with; none for a function with `@entrypoint`."""
        builder = getattr(self._graph, "builder", None)
        schema = getattr(builder, "input_schema", None) or getattr(builder, "state_schema", None)
        return get_type_hints(schema) if schema is not None else {}

    def _unsent_answer(self, values: Any, converter: _EventConverter) -> Iterator[AnyEvent]:
        """The answer in the final state, as far as it was not sent yet."""
        messages = values.get("messages") if isinstance(values, dict) else None
        if isinstance(messages, list):
            last = messages[-1] if messages else None
            if (
                isinstance(last, AIMessage)
                and (last.id or "") != converter.last_sent
                and (text := _text_of(last))
            ):
                yield events.Text(text=text, message=f"{last.id}/whole")
            if values.get("structured_response") is not None:
                yield events.Data(value=as_json(values["structured_response"]))
        elif isinstance(values, str):
            yield events.Text(text=values, message="output")
        elif values is not None and not converter.last_sent:
            yield events.Data(value=as_json(values))


make_adapter = LangGraphAdapter


class _EventConverter:
    """Turns the stream of a run into events. Messages are in the stream several times, and are sent once."""

    def __init__(self) -> None:
        self.last_sent = ""
        """The id of the message whose text was sent last."""
        self._replaced: set[str] = set()
        self._sent_calls: set[str] = set()
        self._sent_results: set[str] = set()
        self._counted_messages: set[str] = set()

    def convert_message(self, message: BaseMessage, metadata: dict[str, Any]) -> Iterator[AnyEvent]:
        if not isinstance(message, AIMessage):  # the pieces of a message are a kind of AIMessage
            return
        text, id = _text_of(message), message.id or ""
        if text and id not in self._replaced:
            if id != self.last_sent and self.last_sent:
                # Of models that run side by side, the one that began last is shown.
                self._replaced.add(self.last_sent)
            self.last_sent = id
            yield events.Text(text=text, message=id)
        yield from self._usage(message, metadata.get("ls_model_name") or "")

    def _usage(self, message: AIMessage, model: str) -> Iterator[AnyEvent]:
        used, id = message.usage_metadata, message.id or ""
        if not used or (id in self._counted_messages and not isinstance(message, AIMessageChunk)):
            return  # the whole message after its pieces, whose usage adds up
        first = id not in self._counted_messages
        self._counted_messages.add(id)
        yield TokenUsage(
            input_tokens=used.get("input_tokens", 0),
            output_tokens=used.get("output_tokens", 0),
            cached_tokens=(used.get("input_token_details") or {}).get("cache_read") or 0,
            reasoning_tokens=(used.get("output_token_details") or {}).get("reasoning") or 0,
            calls=int(first),
            model=message.response_metadata.get("model_name") or model,
        )

    def convert_update(self, update: Any) -> Iterator[AnyEvent]:
        """Tool calls and their results, from what nodes returned."""
        for message in _messages_in(update):
            if isinstance(message, AIMessage):
                for call in message.tool_calls:
                    id = call.get("id") or f"{message.id}/{call['name']}"
                    if id not in self._sent_calls:
                        self._sent_calls.add(id)
                        yield events.ToolCall(id=id, name=call["name"], arguments=as_json(call["args"]))
            elif isinstance(message, ToolMessage) and message.tool_call_id not in self._sent_results:
                self._sent_results.add(message.tool_call_id)
                yield events.ToolResult(
                    id=message.tool_call_id,
                    name=message.name or "",
                    result=_text_of(message),
                    failed=message.status == "error",
                )


def _messages_in(value: Any, depth: int = 0) -> Iterator[BaseMessage]:
    if isinstance(value, BaseMessage):
        yield value
    elif isinstance(value, dict) and depth < 4:
        for member in value.values():
            yield from _messages_in(member, depth + 1)
    elif isinstance(value, list | tuple) and depth < 4:
        for member in value:
            yield from _messages_in(member, depth + 1)


def _text_of(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    blocks = [block if isinstance(block, str) else block.get("text", "") for block in message.content]
    return "".join(block for block in blocks if isinstance(block, str))


def content_of(message: Message, *, without_data: bool = False) -> Any:
    """What a person sent, as LangChain has it: text, or blocks if there are files."""
    blocks: list[Any] = []
    for part in message.parts:
        if part.text is not None:
            blocks.append({"type": "text", "text": part.text})
        elif part.raw is not None or part.url is not None:
            kind = (part.media_type or "application/octet-stream").partition("/")[0]
            block = {"type": kind if kind in ("image", "audio", "video") else "file"}
            if part.raw is not None:
                block["base64"] = base64.b64encode(part.raw).decode()
            else:
                block["url"] = part.url or ""
            blocks.append({**block, "mime_type": part.media_type or "application/octet-stream"})
        elif not without_data:
            blocks.append(
                {
                    "type": "text",
                    "text": Message(parts=(part,)).text or json.dumps(part.data, ensure_ascii=False),
                }
            )
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks


def _progress(content: Any) -> events.Progress:
    if isinstance(content, str):
        return events.Progress(text=content)
    return events.Progress(metadata={"custom": as_json(content)})


# -- pauses --------------------------------------------------------------------------------------------------------


def _questions(state: Any) -> Iterator[events.Question]:
    """The questions of a graph that stopped: its interrupts, or the breakpoint where it is."""
    for each in state.interrupts:
        yield from _questions_of(each)
    if not state.interrupts and state.next:
        where = ", ".join(state.next)
        yield events.Question(
            id=_BREAKPOINT, text=f"The graph stopped before {where}. Continue?", approval=True
        )


def _questions_of(found: Any) -> Iterator[events.Question]:
    """The questions of one interrupt: one, or one for each tool call that LangChain's middleware wants a person to allow."""
    value, schema = found.value, getattr(found, "response_schema", None)
    requests = value.get("action_requests") if isinstance(value, dict) else None
    if isinstance(requests, list):
        for n, request in enumerate(requests):
            arguments = as_json(request.get("args", {}))
            yield ask_approval(f"{found.id}{_QUESTION_SEPARATOR}{n}", request.get("name"), arguments)
    elif isinstance(value, str):
        yield events.Question(id=found.id, text=value, schema=schema)
    else:
        details = as_json(value)
        text = text_in(details, "question", "message", "prompt")
        yield events.Question(
            id=found.id, text=text or json.dumps(details, ensure_ascii=False), details=details, schema=schema
        )


def _resume_values(answers: Mapping[str, events.Answer]) -> dict[str, Any]:
    """The answers by interrupt: what the caller sent, or the decisions that LangChain's middleware wants."""
    values: dict[str, Any] = {}
    for id, answer in answers.items():
        interrupt_id, separator, _ = id.partition(_QUESTION_SEPARATOR)
        if not separator:
            values[id] = answer.value
            continue
        decision = {"type": "approve"}
        if not answer.value:
            decision = {"type": "reject", **({"message": answer.reason} if answer.reason else {})}
        values.setdefault(interrupt_id, {"decisions": []})["decisions"].append(decision)
    return values


# -- agents elsewhere as tools ----------------------------------------------------------------------------------------


def agent_as_tool(
    agent: Any, name: str = "", description: str = "", **options: Unpack[ConnectOptions]
) -> StructuredTool:
    """An agent elsewhere as a tool. If it asks, the graph is interrupted with its question, and the answer goes to its
    task. `options` are those of `connect`.

    What was sent is recorded in the graph's checkpoint, so a graph that is resumed sends nothing twice.
    """
    remote = RemoteAgent(agent, name, description, **options)

    @func.task(name=f"send to {remote.name}")  # type: ignore[untyped-decorator]
    async def send(text: str, task: str, call: str) -> Outcome:
        return await remote.send(text, task=task, call=call)

    async def call(message: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        outcome: Outcome = await send(message, "", tool_call_id)
        while outcome["asks"]:
            question = {"question": outcome["text"], "agent": remote.name, "task": outcome["task"]}
            outcome = await send(str(interrupt(question)), outcome["task"], "")
        return outcome["text"]

    return StructuredTool.from_function(coroutine=call, name=remote.name, description=remote.description)


# -- checkpoints ---------------------------------------------------------------------------------------------------


class LogSaver(InMemorySaver):  # type: ignore[misc]
    """Checkpoints of one run, which `dump` makes JSON for the log: the last of each namespace, and what it needs."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        if state is None:
            return
        thread = self._thread = state["thread"]
        for namespace, checkpoints in state["checkpoints"].items():
            for id, saved in checkpoints.items():
                self.storage[thread][namespace][id] = (
                    _load(saved["checkpoint"]),
                    _load(saved["metadata"]),
                    saved["parent"],
                )
                for task, index, channel, value, path in saved["writes"]:
                    self.writes[(thread, namespace, id)][(task, index)] = (task, channel, _load(value), path)
                for channel, version, value in saved["blobs"]:
                    self.blobs[(thread, namespace, channel, version)] = _load(value)

    def dump(self, *, finished: bool = False) -> Any:
        """The state as JSON. After the end, what subgraphs stored for this run only is left out."""
        namespaces: dict[str, Any] = {}
        thread = next(iter(self.storage), "")
        for namespace, checkpoints in self.storage.get(thread, {}).items():
            if not checkpoints or (finished and ":" in namespace):
                continue
            ids = self._needed_ids(checkpoints)
            namespaces[namespace] = {
                id: self._dump_checkpoint(thread, namespace, id, checkpoints[id]) for id in ids
            }
        return {"thread": thread, "checkpoints": namespaces}

    def _needed_ids(self, checkpoints: dict[str, Any]) -> list[str]:
        """The last checkpoint, or all of them if channels keep only what changed."""
        last = max(checkpoints)
        metadata = self.serde.loads_typed(checkpoints[last][1])
        return sorted(checkpoints) if metadata.get("counters_since_delta_snapshot") else [last]

    def _dump_checkpoint(self, thread: str, namespace: str, id: str, saved: Any) -> dict[str, Any]:
        checkpoint, metadata, parent = saved
        versions = self.serde.loads_typed(checkpoint)["channel_versions"]
        blobs = [
            [channel, version, _dump(self.blobs[(thread, namespace, channel, version)])]
            for channel, version in versions.items()
            if (thread, namespace, channel, version) in self.blobs
        ]
        writes = [
            [task, index, channel, _dump(value), path]
            for (task, index), (_, channel, value, path) in self.writes.get(
                (thread, namespace, id), {}
            ).items()
        ]
        return {
            "checkpoint": _dump(checkpoint),
            "metadata": _dump(metadata),
            "parent": parent,
            "writes": writes,
            "blobs": blobs,
        }


def _dump(value: tuple[str, bytes]) -> list[str]:
    kind, raw = value
    return [kind, base64.b64encode(raw).decode()]


def _load(value: list[str]) -> tuple[str, bytes]:
    kind, raw = value
    return kind, base64.b64decode(raw)
