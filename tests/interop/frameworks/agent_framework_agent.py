"""The agent of `script.py` in Microsoft Agent Framework. A tool requires approval."""

import json

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    ResponseStream,
    tool,
)

from dragoman import wrap

from . import script


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    def _inner_get_response(self, *, messages, stream, options, **more):
        return ResponseStream(self._answer(messages), finalizer=ChatResponse.from_updates)

    async def _answer(self, messages):
        said, results = [], []
        for message in messages:
            for content in message.contents:
                if content.type == "function_result":
                    results.append(str(content.result))
                elif content.type == "text" and message.role == "user":
                    said.append(content.text)
                    results = []
        answer, id = script.respond(said, results), f"message-{len(messages)}"
        async for piece in script.pieces(answer):
            yield ChatResponseUpdate(
                role="assistant", contents=[Content.from_text(piece)], message_id=id, response_id=id
            )
        contents = [
            Content.from_function_call(
                f"call-{len(said)}-{n}", call.name, arguments=json.dumps(call.arguments)
            )
            for n, call in enumerate(answer.calls)
        ]
        used = {"input_token_count": script.INPUT_TOKENS, "output_token_count": script.OUTPUT_TOKENS}
        contents.append(Content.from_usage(used))
        yield ChatResponseUpdate(role="assistant", contents=contents, message_id=id, response_id=id)


agent = wrap(
    Agent(
        ScriptedClient(),
        name="Travel",
        tools=[tool(script.weather), tool(script.book, approval_mode="always_require")],
    )
)
