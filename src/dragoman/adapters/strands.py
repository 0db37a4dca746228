"""Strands Agents: an `Agent`, or a function that makes one.

An agent of Strands holds one conversation and does one thing at a time. Before each run it is set to the state of the
context (a snapshot, which goes to the task's log). Tasks wait for each other unless `wrap` has a function that makes agents.
An interrupt of a tool or a hook asks the caller. A run that the process did not survive continues after the last tools that
answered.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from strands.handlers import PrintingCallbackHandler
from strands.types._snapshot import Snapshot
from strands.types.session import decode_bytes_values, encode_bytes_values

from dragoman.adapters import events
from dragoman.adapters.adapter import Adapter, Convert, Instances, Start, convert_parts, text_in
from dragoman.adapters.events import AnyEvent
from dragoman.model.content import Message, Part, plain
from dragoman.model.usage import TokenUsage


class StrandsAdapter(Adapter):
    def __init__(self, objects: Instances, input: Convert, output: Convert) -> None:
        super().__init__(objects, input, output)
        self._first_snapshot = objects.first.take_snapshot(preset="session").to_dict()

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        async with self._objects.acquire() as agent:
            if isinstance(agent.callback_handler, PrintingCallbackHandler):
                agent.callback_handler = _quiet
            agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(start.state or self._first_snapshot)))
            run_input: Any = None  # it continues with the conversation as it is
            if start.message is not None:
                run_input = self._input(start.message)
            elif start.answers:
                run_input = [
                    {"interruptResponse": {"interruptId": id, "response": answer.value}}
                    for id, answer in start.answers.items()
                ]
            converter = _EventConverter()
            stream = agent.stream_async(run_input, **start.options)
            async with aclosing(stream):
                async for event in stream:
                    for each in converter.convert(event):
                        yield each
                    if converter.tools_answered:  # what they did need not be done again
                        converter.tools_answered = False
                        yield events.Saved(state=_snapshot(agent))
            state = _snapshot(agent)
        result = converter.result
        if result.interrupts:
            yield events.Paused(questions=tuple(map(_question, result.interrupts)), state=state)
            return
        for each in self.finish(state, result, result.structured_output):
            yield each

    def default_input(self, message: Message) -> Any:
        return prompt_of(message)


make_adapter = StrandsAdapter


class _EventConverter:
    """Turns the events of Strands into those of adapters."""

    def __init__(self) -> None:
        self.result: Any = None
        self.tools_answered = False
        self._message = 0

    def convert(self, event: dict[str, Any]) -> Iterator[AnyEvent]:
        if "data" in event and isinstance(event["data"], str):
            yield events.Text(text=event["data"], message=f"message-{self._message}")
        elif "message" in event:
            yield from self._content(event["message"])
            self._message += 1
        elif "result" in event:
            self.result = event["result"]
        elif isinstance(event.get("event"), dict) and (metadata := event["event"].get("metadata")):
            used = metadata.get("usage", {})
            yield TokenUsage(
                input_tokens=used.get("inputTokens", 0),
                output_tokens=used.get("outputTokens", 0),
                cached_tokens=used.get("cacheReadInputTokens", 0),
            )

    def _content(self, message: dict[str, Any]) -> Iterator[AnyEvent]:
        for block in message["content"]:
            if "toolUse" in block:
                use = block["toolUse"]
                yield events.ToolCall(id=use["toolUseId"], name=use["name"], arguments=use["input"])
            elif "toolResult" in block:
                result = block["toolResult"]
                self.tools_answered = True
                texts = [each.get("text") or json.dumps(each.get("json")) for each in result["content"]]
                yield events.ToolResult(
                    id=result["toolUseId"], result="\n".join(texts), failed=result["status"] == "error"
                )


def _snapshot(agent: Any) -> Any:
    return plain(encode_bytes_values(agent.take_snapshot(preset="session").to_dict()))


def _quiet(**event: Any) -> None:
    """Strands prints what happens unless it is given a handler."""


def prompt_of(message: Message) -> Any:
    """A message as a prompt: text, or blocks if there are files."""

    def file(part: Part, media_type: str) -> Any:
        kind, _, format = media_type.partition("/")
        content: dict[str, Any] = {"format": format, "source": {"bytes": part.raw}}
        if kind in ("image", "video"):
            return {kind: content}
        return {"document": {**content, "name": part.filename or "file"}}

    blocks = convert_parts(message, lambda text: {"text": text}, file, lambda part, _: {"text": part.url})
    return "\n".join(block["text"] for block in blocks) if all("text" in each for each in blocks) else blocks


def _question(interrupt: Any) -> events.Question:
    reason = interrupt.reason
    text = reason if isinstance(reason, str) else text_in(reason, "question", "message", "prompt")
    return events.Question(id=interrupt.id, text=text or interrupt.name, details=plain(reason))
