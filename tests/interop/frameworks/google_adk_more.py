"""What else Google ADK has: a tool that asks for a confirmation by itself, a request for input, a tool that somebody else
answers, a tool that needs a credential."""

from fastapi.openapi.models import APIKey, APIKeyIn
from google.adk.agents import LlmAgent
from google.adk.auth import AuthConfig
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.adk.tools import request_input as input_tool

from dragoman import wrap

from . import script
from .google_adk_agent import ScriptedModel


def book(city: str, tool_context: ToolContext):
    """Book a trip to a city."""
    if not tool_context.tool_confirmation:
        tool_context.request_confirmation(hint=f"Really {city}?")
        return {"error": "This tool call requires confirmation, please approve or reject."}
    if not tool_context.tool_confirmation.confirmed:
        return {"result": "not booked"}
    return {"result": script.book(city)}


dynamic = wrap(LlmAgent(name="dynamic", model=ScriptedModel(model="scripted"), tools=[book]))


class CallsFirst(ScriptedModel):
    """Calls one tool, and says what it answered."""

    tool: str
    arguments: dict

    async def generate_content_async(self, llm_request, stream=False):
        real = script.respond
        call = script.Call(self.tool, self.arguments)
        script.respond = lambda said, results: script.Answer(
            [str(results)] if results else [], [] if results else [call]
        )
        try:
            async for response in super().generate_content_async(llm_request, stream):
                yield response
        finally:
            script.respond = real


asking = CallsFirst(model="scripted", tool="adk_request_input", arguments={"message": "Which day?"})
asks = wrap(LlmAgent(name="asks", model=asking, tools=[input_tool]))


def measure(what: str):
    """Have somebody measure something."""


measuring = CallsFirst(model="scripted", tool="measure", arguments={"what": "the river"})
measures = wrap(LlmAgent(name="measures", model=measuring, tools=[LongRunningFunctionTool(measure)]))


key = AuthConfig(auth_scheme=APIKey(**{"in": APIKeyIn.header, "name": "X-Key"}))


def mail(to: str, tool_context: ToolContext):
    """Send mail. It needs a key."""
    found = tool_context.get_auth_response(key)
    if found is None:
        tool_context.request_credential(key)
        return {"pending": True}
    script.book(to)
    return {"result": f"sent to {to} with {found.api_key}"}


mailing = CallsFirst(model="scripted", tool="mail", arguments={"to": "Ada"})
mails = wrap(LlmAgent(name="mails", model=mailing, tools=[mail]))
