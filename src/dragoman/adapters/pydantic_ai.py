"""pydantic-ai: an `Agent`.

Its message history goes to the task's log, also between the model and its tools. A tool that requires approval, and a
tool that is deferred, asks the caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, Unpack

from pydantic_ai import (
    Agent,
    ApprovalRequired,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    DocumentUrl,
    ImageUrl,
    RunContext,
    Tool,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.messages import (
    FilePart,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessagesTypeAdapter,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)

from dragoman.adapters import events
from dragoman.adapters.adapter import Adapter, Convert, Instances, Start, convert_parts, describe_call
from dragoman.adapters.events import AnyEvent
from dragoman.adapters.remote_agent import RemoteAgent
from dragoman.client.connection import ConnectOptions
from dragoman.model.content import Message, plain
from dragoman.model.usage import TokenUsage

__all__ = ["agent_as_tool", "answer_to"]


class PydanticAIAdapter(Adapter):
    def __init__(self, objects: Instances, input: Convert, output: Convert) -> None:
        super().__init__(objects, input, output)
        agent = self._agent = objects.first
        declared = getattr(agent, "output_type", str)
        kinds = list(declared) if isinstance(declared, list | tuple) else [declared]
        self._declares_deferred = DeferredToolRequests in kinds
        self._output_type = [*kinds, DeferredToolRequests]

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        state = start.state or {}
        options: dict[str, Any] = {
            "message_history": ModelMessagesTypeAdapter.validate_python(state.get("messages", [])),
            "conversation_id": start.turn.context_id,
        }
        if not self._declares_deferred:
            options["output_type"] = self._output_type
        if start.answers:
            options["deferred_tool_results"] = _results(start, state["external"], state["metadata"])
        prompt = None if start.message is None else self._input(start.message)
        called_tools: set[str] = set()
        number = len(options["message_history"])
        async with self._agent.iter(prompt, **(options | dict(start.options))) as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    if called_tools:  # tools have answered: what they did need not be done again
                        yield events.Saved(
                            state={"messages": _dump([*run.ctx.state.message_history, node.request])}
                        )
                    number += 1
                    async with node.stream(run.ctx) as stream:
                        async for event in stream:
                            for each in _convert(event, f"message-{number}"):
                                yield each
                elif Agent.is_call_tools_node(node):
                    used = node.model_response.usage
                    if start.message is not None or called_tools or not start.answers:
                        yield TokenUsage(
                            input_tokens=used.input_tokens,
                            output_tokens=used.output_tokens,
                            cached_tokens=used.cache_read_tokens,
                            model=node.model_response.model_name or "",
                        )
                    async with node.stream(run.ctx) as stream:
                        async for event in stream:
                            if isinstance(event, FunctionToolCallEvent):
                                called_tools.add(event.part.tool_call_id)
                                yield events.ToolCall(
                                    id=event.part.tool_call_id,
                                    name=event.part.tool_name,
                                    arguments=event.part.args_as_dict(),
                                )
                            elif isinstance(event, FunctionToolResultEvent):
                                yield _result(event)
            result = run.result
        messages = _dump(result.all_messages())
        output = result.output
        if isinstance(output, DeferredToolRequests):
            external = [call.tool_call_id for call in output.calls]
            new_state = {"messages": messages, "external": external, "metadata": plain(output.metadata)}
            yield events.Paused(questions=tuple(_questions(output)), state=new_state)
            return
        for each in self.finish({"messages": messages}, output, None if isinstance(output, str) else output):
            yield each

    def default_input(self, message: Message) -> Any:
        return prompt_of(message)


make_adapter = PydanticAIAdapter


def _dump(messages: Any) -> Any:
    return ModelMessagesTypeAdapter.dump_python(messages, mode="json")


def prompt_of(message: Message) -> Any:
    """A message as a prompt: text, or a list if there are files."""
    content = convert_parts(
        message,
        str,
        lambda part, media_type: BinaryContent(data=part.raw, media_type=media_type),
        lambda part, media_type: (ImageUrl if media_type.startswith("image/") else DocumentUrl)(url=part.url),
    )
    return "\n".join(content) if all(isinstance(each, str) for each in content) else content


def _convert(event: Any, message: str) -> Iterator[AnyEvent]:
    if isinstance(event, PartStartEvent):
        if isinstance(event.part, TextPart) and event.part.content:
            yield events.Text(text=event.part.content, message=message)
        elif isinstance(event.part, FilePart):
            yield events.File(raw=event.part.content.data, media_type=event.part.content.media_type)
    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        yield events.Text(text=event.delta.content_delta, message=message)


def _result(event: Any) -> events.ToolResult:
    part = event.part
    outcome = getattr(part, "outcome", "success")
    return events.ToolResult(
        id=part.tool_call_id,
        name=part.tool_name or "",
        result=part.model_response_str() if hasattr(part, "model_response_str") else str(part.content),
        failed=outcome not in ("success", "denied"),
    )


def _questions(requests: Any) -> Iterator[events.Question]:
    for calls, approval in ((requests.approvals, True), (requests.calls, False)):
        for call in calls:
            arguments = call.args_as_dict()
            metadata = requests.metadata.get(call.tool_call_id, {})
            question = metadata.get("question")
            text = f"{'Allow ' if approval else ''}{describe_call(call.tool_name, arguments)}?"
            yield events.Question(
                id=call.tool_call_id,
                text=question if isinstance(question, str) else text,
                approval=approval and _REMOTE not in metadata,
                details={"tool": call.tool_name, "arguments": arguments},
            )


def _results(start: Start, external: list[str], metadata: dict[str, Any]) -> Any:
    """The answers, as pydantic-ai wants them."""
    results = DeferredToolResults()
    for id, answer in start.answers.items():
        if _REMOTE in metadata.get(id, {}):
            results.update(answer_to(id, metadata[id], answer.text))
        elif id in external:
            results.calls[id] = answer.value
        elif answer.value:
            results.approvals[id] = True
        else:
            results.approvals[id] = ToolDenied(answer.reason) if answer.reason else ToolDenied()
    return results


# -- agents elsewhere as tools ----------------------------------------------------------------------------------------

_REMOTE = "remoteTask"
"""The metadata of a tool call whose agent elsewhere asks: its task there."""


def agent_as_tool(
    agent: Any, name: str = "", description: str = "", **options: Unpack[ConnectOptions]
) -> Tool[Any]:
    """An agent elsewhere as a tool. If it asks, the call is deferred (`DeferredToolRequests`) with its question in the
    metadata, and `answer_to` makes the results to continue with. `options` are those of `connect`."""
    remote = RemoteAgent(agent, name, description, **options)

    async def call(ctx: RunContext[Any], message: str) -> str:
        remote_metadata = ctx.tool_call_metadata if ctx.tool_call_approved else None
        if remote_metadata:
            outcome = await remote.send(message, task=remote_metadata[_REMOTE])
        else:
            outcome = await remote.send(message, call=ctx.tool_call_id or "")
        if outcome["asks"]:
            raise ApprovalRequired({"question": outcome["text"], _REMOTE: outcome["task"]})
        return outcome["text"]

    return Tool(call, name=remote.name, description=remote.description, takes_ctx=True)


def answer_to(tool_call_id: str, metadata: dict[str, Any], answer: str) -> DeferredToolResults:
    """The results that give an answer to the agent elsewhere which asked: `metadata` is that of the deferred call."""
    return DeferredToolResults(
        approvals={tool_call_id: ToolApproved(override_args={"message": answer})},
        metadata={tool_call_id: metadata},
    )
