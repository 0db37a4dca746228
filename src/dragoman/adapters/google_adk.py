"""Google ADK: an agent, a workflow or an `App`.

The session goes to the task's log. A tool that wants confirmation and a request for input ask the caller; a request for
credentials is `auth-required`. A run that the process did not survive is run again from its last pause, and tools that have
answered do not run again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from typing import Any

from google.adk.agents import BaseAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.artifacts import InMemoryArtifactService
from google.adk.plugins import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService, Session
from google.genai import types

from dragoman.adapters import events
from dragoman.adapters.adapter import (
    Adapter,
    Convert,
    Instances,
    Start,
    ToolResults,
    ask_approval,
    convert_parts,
    describe_call,
)
from dragoman.adapters.events import AnyEvent
from dragoman.model.content import Message, plain
from dragoman.model.usage import TokenUsage

_CONFIRMATION = "adk_request_confirmation"
_INPUT = "adk_request_input"
_CREDENTIAL = "adk_request_credential"
_REQUESTS = (_CONFIRMATION, _INPUT, _CREDENTIAL)
_USER = "caller"


class GoogleADKAdapter(Adapter):
    def __init__(self, objects: Instances, input: Convert, output: Convert) -> None:
        super().__init__(objects, input, output)
        self._obj, self._app_name = objects.first, objects.first.name

    def default_input(self, message: Message) -> Any:
        return content_of(message)

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        sessions, session_id = InMemorySessionService(), start.turn.context_id
        if start.state is None:
            await sessions.create_session(app_name=self._app_name, user_id=_USER, session_id=session_id)
        else:
            session = Session.model_validate(start.state["session"])
            sessions.sessions.setdefault(self._app_name, {}).setdefault(_USER, {})[session.id] = session
        options = dict(start.options)
        options.setdefault("run_config", RunConfig(streaming_mode=StreamingMode.SSE))
        if start.message is not None:
            content = self._input(start.message)
        else:
            content = _answers(start)
        converter = _EventConverter()
        runner = self._runner(sessions)
        runner.plugin_manager.plugins.insert(0, _ToolRecorder(start.tools))
        stream = runner.run_async(user_id=_USER, session_id=session_id, new_message=content, **options)
        async with aclosing(stream):
            async for event in stream:
                for each in converter.convert(event):
                    yield each
        session = await sessions.get_session(app_name=self._app_name, user_id=_USER, session_id=session_id)
        state = {"session": session.model_dump(mode="json", by_alias=True)}
        if converter.requests:
            state["requests"] = {call.id: call.name for call in converter.requests}
            state["credentials"] = {
                call.id: plain(call.args) for call in converter.requests if call.name == _CREDENTIAL
            }
            yield events.Paused(questions=tuple(map(_question, converter.requests)), state=state)
            return
        if converter.error:
            yield events.Finished(state=state, failed=converter.error)
            return
        output = converter.output if converter.output is not None else converter.text
        for each in self.finish(
            state, output, None if isinstance(output, str) and converter.text else output
        ):
            yield each

    def _runner(self, sessions: Any) -> Any:
        services = {"session_service": sessions, "artifact_service": InMemoryArtifactService()}
        if isinstance(self._obj, App):
            return Runner(app=self._obj, **services)
        kind = "agent" if isinstance(self._obj, BaseAgent) else "node"
        return Runner(app_name=self._app_name, **{kind: self._obj}, **services)


make_adapter = GoogleADKAdapter


class _ToolRecorder(BasePlugin):  # type: ignore[misc]
    """Records what tools returned, and what they changed in the session's state."""

    def __init__(self, results: ToolResults) -> None:
        super().__init__(name="dragoman_tool_results")
        self._results = results
        self._keys: dict[int, str] = {}

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
        self._keys[id(tool_context)] = key = self._results.begin_call(tool.name, tool_args)
        if not self._results.has(key):
            return None
        found = self._results.get(key)
        for name, value in found["state"].items():
            tool_context.state[name] = value
        return found["result"]

    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
        key = self._keys.pop(id(tool_context), "")
        actions = tool_context.actions
        waits = actions.requested_tool_confirmations or actions.requested_auth_configs
        if not key or self._results.has(key) or tool.is_long_running or waits:
            return
        await self._results.put(key, {"result": result, "state": dict(actions.state_delta)})


class _EventConverter:
    """Turns the events of ADK into those of adapters."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        """Calls that the caller has to answer."""
        self.text, self.error = "", ""
        self.output: Any = None
        self._message, self._streamed = 0, False

    def convert(self, event: Any) -> Iterator[AnyEvent]:
        if event.error_code and event.error_message:
            self.error = str(event.error_message)
        parts = event.content.parts or [] if event.content else []
        for part in parts:
            if part.text and not part.thought and event.author != "user":
                if event.partial or not self._streamed:
                    self._streamed = self._streamed or bool(event.partial)
                    self.text = part.text
                    yield events.Text(text=part.text, message=f"message-{self._message}")
            elif part.function_call and not event.partial:
                yield from self._call(part.function_call, event.long_running_tool_ids or ())
            elif part.function_response and event.author != "user":
                yield from self._response(part.function_response)
            elif part.inline_data and not event.partial:
                data = part.inline_data
                yield events.File(
                    name=data.display_name or "", raw=data.data, media_type=data.mime_type or ""
                )
        if event.partial:
            return
        if parts:
            self._message, self._streamed = self._message + 1, False
        if event.output is not None:
            self.output = event.output
        if used := event.usage_metadata:
            yield TokenUsage(
                input_tokens=used.prompt_token_count or 0,
                output_tokens=(used.candidates_token_count or 0) + (used.thoughts_token_count or 0),
                cached_tokens=used.cached_content_token_count or 0,
                reasoning_tokens=used.thoughts_token_count or 0,
                model=event.model_version or "",
            )

    def _call(self, call: Any, long_running: Collection[str]) -> Iterator[AnyEvent]:
        if call.name in _REQUESTS:
            self.requests.append(call)
            return
        yield events.ToolCall(id=call.id or call.name, name=call.name, arguments=call.args)
        if call.id in long_running:  # the caller answers, unless a response of the tool follows
            self.requests.append(call)

    def _response(self, response: Any) -> Iterator[AnyEvent]:
        self.requests = [call for call in self.requests if call.id != response.id]
        waits = any(_original(call).get("id") == response.id for call in self.requests)
        asks = isinstance(response.response, dict) and "requires confirmation" in str(
            response.response.get("error", "")
        )
        if response.name not in _REQUESTS and not waits and not asks:
            found = response.response
            result = found.get("result", found) if isinstance(found, dict) else found
            failed = isinstance(found, dict) and "error" in found
            yield events.ToolResult(
                id=response.id or response.name, name=response.name, result=result, failed=failed
            )


def content_of(message: Message) -> Any:
    """A message as ADK's content."""
    parts = convert_parts(
        message,
        lambda text: types.Part(text=text),
        lambda part, media_type: types.Part.from_bytes(data=part.raw, mime_type=media_type),
        lambda part, media_type: types.Part.from_uri(file_uri=part.url, mime_type=media_type),
    )
    return types.Content(role="user", parts=parts)


def _original(call: Any) -> dict[str, Any]:
    found = (call.args or {}).get("originalFunctionCall")
    return found if isinstance(found, dict) else {}


def _question(call: Any) -> events.Question:
    details = call.args or {}
    if call.name == _CONFIRMATION:
        original, hint = _original(call), details.get("toolConfirmation", {}).get("hint", "")
        return ask_approval(call.id, original.get("name"), original.get("args", {}), hint=hint)
    if call.name == _CREDENTIAL:
        config = _auth_config(details)
        page = ((config.get("exchangedAuthCredential") or {}).get("oauth2") or {}).get("authUri")
        text = "Credentials are needed."
        if page:
            text = f"Authorisation is needed: open {page} and send the address that it leads to."
        return events.Question(id=call.id, text=text, details=plain(details), auth=True)
    if call.name != _INPUT:
        return events.Question(id=call.id, text=f"{describe_call(call.name, details)}?", details=details)
    text = details.get("message") or "Input is needed."
    schema = details.get("responseSchema") or details.get("response_schema")
    return events.Question(id=call.id, text=text, details=details, schema=schema)


def _answers(start: Start) -> Any:
    parts = []
    for id, answer in start.answers.items():
        name = start.state["requests"][id]
        content = _response(name, answer)
        if name == _CREDENTIAL and not isinstance(answer.value, dict):
            content = _credential(start.state["credentials"][id], answer.text.strip())
        response = types.FunctionResponse(id=id, name=name, response=content)
        parts.append(types.Part(function_response=response))
    return types.Content(role="user", parts=parts)


def _auth_config(arguments: Any) -> dict[str, Any]:
    found = (arguments or {}).get("authConfig") or (arguments or {}).get("auth_config") or {}
    return found if isinstance(found, dict) else {}


def _credential(arguments: Any, text: str) -> dict[str, Any]:
    """The text of a caller as a credential: a key, a token, or the address that a login page led to."""
    config = _auth_config(arguments)
    kind = (config.get("authScheme") or {}).get("type")
    if kind == "apiKey":
        credential: dict[str, Any] = {"authType": "apiKey", "apiKey": text}
    elif kind in ("oauth2", "openIdConnect"):
        known = config.get("exchangedAuthCredential") or {}
        credential = {**known, "oauth2": {**(known.get("oauth2") or {}), "authResponseUri": text}}
    else:
        credential = {"authType": "http", "http": {"scheme": "bearer", "credentials": {"token": text}}}
    return {**config, "exchangedAuthCredential": credential}


def _response(name: str, answer: events.Answer) -> dict[str, Any]:
    if name == _CONFIRMATION:
        return {"confirmed": bool(answer.value)}
    if isinstance(answer.value, dict):
        return answer.value
    return {"result": answer.value}
