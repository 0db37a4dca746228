"""The agent of `script.py` as a LlamaIndex workflow. A step asks a person with `InputRequiredEvent`."""

from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

from dragoman import wrap

from . import script


class Delta(Event):
    delta: str


class Used(Event):
    input_tokens: int = script.INPUT_TOKENS
    output_tokens: int = script.OUTPUT_TOKENS


class Called(Event):
    tool_id: str
    tool_name: str
    tool_kwargs: dict


class Answered(Called):
    tool_output: str


class Think(Event):
    results: list


class Use(Event):
    id: str
    name: str
    arguments: dict
    of: int


class ToolAnswered(Event):
    id: str
    of: int
    result: str


class Travel(Workflow):
    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Think:
        said = await ctx.store.get("said", default=[])
        await ctx.store.set("said", [*said, ev.input])
        return Think(results=[])

    @step
    async def think(self, ctx: Context, ev: Think) -> Use | StopEvent | None:
        said = await ctx.store.get("said")
        answer = script.respond(said, ev.results)
        async for piece in script.pieces(answer):
            ctx.write_event_to_stream(Delta(delta=piece))
        ctx.write_event_to_stream(Used())
        if not answer.calls:
            return StopEvent(result=answer.text)
        for n, call in enumerate(answer.calls):
            id = f"call-{len(said)}-{n}"
            ctx.write_event_to_stream(Called(tool_id=id, tool_name=call.name, tool_kwargs=call.arguments))
            ctx.send_event(Use(id=id, name=call.name, arguments=call.arguments, of=len(answer.calls)))

    @step(num_workers=4)
    async def use(self, ctx: Context, ev: Use) -> ToolAnswered:
        city = ev.arguments["city"]
        if ev.name == "weather":
            result = script.weather(city)
        else:
            reply = await ctx.wait_for_event(
                HumanResponseEvent,
                waiter_id=ev.id,
                waiter_event=InputRequiredEvent(prefix=f"Book {city}?", call=ev.id),
                requirements={"call": ev.id},
            )
            result = script.book(city) if reply.response == "yes" else f"did not book {city}"
        ctx.write_event_to_stream(
            Answered(tool_id=ev.id, tool_name=ev.name, tool_kwargs=ev.arguments, tool_output=result)
        )
        return ToolAnswered(id=ev.id, of=ev.of, result=result)

    @step
    async def collect(self, ctx: Context, ev: ToolAnswered) -> Think | None:
        done = ctx.collect_events(ev, [ToolAnswered] * ev.of)
        if done is None:
            return None
        return Think(results=[each.result for each in sorted(done, key=lambda each: each.id)])


agent = wrap(Travel(timeout=None), name="Travel")
