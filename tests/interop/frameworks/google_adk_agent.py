"""The agent of `script.py` in Google ADK. A tool wants confirmation."""

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.tools import FunctionTool
from google.genai import types

from dragoman import wrap

from . import script


class ScriptedModel(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        said, results = [], []
        for content in llm_request.contents:
            for part in content.parts:
                if part.function_response:
                    found = part.function_response.response
                    results.append(str(found.get("result", found.get("error", found))))
                elif content.role == "user" and part.text:
                    said.append(part.text)
                    results = []
        answer = script.respond(said, results)
        async for piece in script.pieces(answer):
            content = types.Content(role="model", parts=[types.Part(text=piece)])
            yield LlmResponse(content=content, partial=True)
        parts = [types.Part(text=answer.text)] if answer.text else []
        for n, call in enumerate(answer.calls):
            id = f"call-{len(said)}-{n}"
            parts.append(
                types.Part(function_call=types.FunctionCall(id=id, name=call.name, args=call.arguments))
            )
        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=script.INPUT_TOKENS, candidates_token_count=script.OUTPUT_TOKENS
        )
        yield LlmResponse(
            content=types.Content(role="model", parts=parts), usage_metadata=used, partial=False
        )


agent = wrap(
    LlmAgent(
        name="Travel",
        model=ScriptedModel(model="scripted"),
        tools=[script.weather, FunctionTool(script.book, require_confirmation=True)],
    )
)
