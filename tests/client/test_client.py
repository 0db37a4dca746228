"""An agent and its client in one process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import Agent, Part, Turn, connect
from dragoman.client import TaskFailed, file
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import A2AError, InvalidAgentResponse, PushNotSupported, TaskNotFound
from dragoman.model.content import Message, Role
from dragoman.model.task import TaskState
from tests.client.fakes import Answer, Asked, Site, answer, card, page
from tests.requirements import requirement

agent = Agent("Helper", description="Helps", input_modes=["*/*"], output_modes=["*/*"])


@agent.skill(default=True)
async def do(turn: Turn) -> Any:
    """Does what the text says."""
    match turn.text.split(" "):
        case ["say", *words]:
            return " ".join(words)
        case ["ask"]:
            city = await turn.ask("Which city?")
            day = await turn.ask("Which day?")
            return f"{city} on {day}"
        case ["fail"]:
            raise RuntimeError("secret details")
        case ["refuse"]:
            turn.reject("not today")
        case ["permission"]:
            await turn.need_auth("log in there")
            return "allowed"
        case ["data"]:
            await turn.data({"n": 1})
            return None
        case ["file"]:
            await turn.file(b"\x00\x01", name="a.bin")
            return None
        case ["wait"]:
            await turn.status("waiting")
            await asyncio.Event().wait()
    return None


@agent.skill
async def parts(turn: Turn) -> Any:
    """Gives back what it got."""
    return list(turn.message.parts)


@agent.skill(reply=True)
async def reply(turn: Turn) -> str:
    """Answers without a task."""
    return turn.text


async def test_a_text_is_answered_with_a_text() -> None:
    async with connect(agent) as it:
        answer = await it("say good morning")
        assert answer == "good morning" == answer.text
        assert isinstance(answer, str)
        assert answer.state is TaskState.COMPLETED
        assert answer.id and answer.context_id
        assert not answer.asks
        assert (await it.get(answer.id)).text == answer


async def test_two_agents_in_a_process_are_not_taken_for_each_other() -> None:
    other = Agent("Other", description="Another one")
    other.skill(reply)
    async with connect(agent) as it, connect(other) as that:
        assert (it.card.name, that.card.name) == ("Helper", "Other")


async def test_a_stream_adds_up_to_the_reply() -> None:
    async with connect(agent) as it:
        stream = it.stream("say hello")
        text = "".join([piece.text async for piece in stream])
        assert text == stream.reply == "hello"
        assert stream.task == stream.reply.task


async def test_a_conversation_of_questions() -> None:
    async with connect(agent) as it:
        first = await it("ask")
        assert (first, first.asks, first.state) == ("Which city?", True, TaskState.INPUT_REQUIRED)
        second = await first.answer("Paris")
        assert second == "Which day?"
        assert await second.answer("Monday") == "Paris on Monday"
        assert second.id == first.id


async def test_a_question_ends_a_stream_and_is_its_text() -> None:
    async with connect(agent) as it:
        stream = it.stream("ask")
        assert "".join([piece.text async for piece in stream]) == "Which city?"
        assert stream.reply.asks


async def test_a_permission_that_is_needed_is_a_question_of_its_own_kind() -> None:
    async with connect(agent) as it:
        answer = await it.send("permission", wait=False)
        stream = it.subscribe(answer.id)
        async for piece in stream:
            if piece.state is TaskState.AUTH_REQUIRED:
                break
        assert stream.reply.asks
        assert stream.reply == "log in there"
        assert await stream.reply.answer("done") == "allowed"


@pytest.mark.parametrize(("text", "state"), [("fail", TaskState.FAILED), ("refuse", TaskState.REJECTED)])
async def test_calling_raises_what_sending_returns(text: str, state: TaskState) -> None:
    async with connect(agent) as it:
        with pytest.raises(TaskFailed) as caught:
            await it(text)
        assert caught.value.task.state is state
        assert (await it.send(text)).state is state


async def test_an_answer_without_a_task() -> None:
    async with connect(agent) as it:
        answer = await it("hello", skill="reply")
        assert (answer, answer.task, answer.id) == ("hello", None, "")
        assert isinstance(answer.message, Message)
        assert [piece.text async for piece in it.stream("hello", skill="reply")] == ["hello"]


async def test_data_and_files_come_back_as_such() -> None:
    async with connect(agent) as it:
        assert (await it("data")).data == {"n": 1}
        (found,) = (await it("file")).files
        assert (found.raw, found.filename) == (b"\x00\x01", "a.bin")


class Struct(msgspec.Struct):
    x: int


@dataclass
class Data:
    x: int


class Pydantic:
    """Looks like a pydantic model."""

    def model_dump(self, *, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"x": 1}


@pytest.mark.parametrize("value", [Struct(1), Data(1), Pydantic(), {"x": 1}])
async def test_data_can_be_any_kind_of_object(value: Any) -> None:
    async with connect(agent) as it:
        (part,) = (await it(value, skill="parts")).artifacts[0].parts
        assert part.data == {"x": 1}
        assert [p.data for p in (await it(data=[value], skill="parts")).artifacts[0].parts] == [[{"x": 1}]]


async def test_files_are_sent_by_path_as_bytes_or_by_url(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("a note")
    url = "https://files.example/cat.png"
    async with connect(agent) as it:
        sent = await it(
            "look", path, b"raw", files=[str(path), b"more", url, file(b"x", name="x.csv")], skill="parts"
        )
    text, one, raw, two, more, there, named = sent.artifacts[0].parts
    assert text.text == "look"
    assert one == two == Part(raw=b"a note", filename="note.txt", media_type="text/plain")
    assert (raw.raw, more.raw) == (b"raw", b"more")
    assert (there.url, there.filename, there.media_type) == (url, "cat.png", "image/png")
    assert (named.filename, named.media_type) == ("x.csv", "text/csv")


async def test_a_send_without_content_is_an_error() -> None:
    async with connect(agent) as it:
        with pytest.raises(TypeError, match="nothing to send"):
            await it()
        with pytest.raises(TypeError, match="contxt"):
            await it("say hi", contxt="c")  # type: ignore[call-arg]


async def test_a_wrong_option_of_a_client_is_refused_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"^connect: there is no option 'tiemout'; did you mean 'timeout'\?"):
        connect(agent, tiemout=3)  # type: ignore[call-arg]
    async with connect(agent) as client:
        with pytest.raises(
            TypeError, match=r"^a message: there is no option 'timout'; did you mean 'timeout'"
        ):
            await client("say hi", timout=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"^a message: there is no option 'tsk'; did you mean 'task'\?"):
            await client.send("say hi", tsk="1")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"^a message: there is no option 'skil'; did you mean 'skill'\?"):
            client.stream("say hi", skil="do")  # type: ignore[call-arg]


async def test_a_message_can_be_given_whole() -> None:
    async with connect(agent) as it:
        message = Message(message_id="mine", role=Role.USER, parts=(Part(text="say yes"),), context_id="talk")
        answer = await it(message)
        assert answer.task is not None
        assert (answer, answer.context_id, answer.task.history[0].message_id) == ("yes", "talk", "mine")


async def test_a_task_can_be_left_waited_for_and_canceled() -> None:
    async with connect(agent) as it:
        left = await it.send("wait", wait=False)
        assert not left.state.settled
        with pytest.raises(TimeoutError):
            await left.wait(timeout=0.05)
        canceled = await left.cancel()
        assert canceled.state is TaskState.CANCELED
        assert (await left.wait()).state is TaskState.CANCELED
        done = await it("say done")
        assert await done.wait() is done


@requirement(165)
async def test_tasks_are_listed_across_pages() -> None:
    async with connect(agent) as it:
        made = [(await it(f"say {n}", context="talk" if n % 2 else "other")).id for n in range(7)]
        assert sorted([task.id async for task in it.list(page_size=3)]) == sorted(made)
        listed = [task.id async for task in it.list(context="talk", state="completed", page_size=2)]
        assert sorted(listed) == sorted(made[1::2])
        assert [task async for task in it.list(state="failed")] == []


@pytest.mark.parametrize("ask", [lambda agent: aiter(agent.list()), lambda agent: agent.list_push("t")])
async def test_pages_that_repeat_are_an_error(ask: Any) -> None:
    def rpc(asked: Asked) -> Answer:
        result = {"tasks": [], "configs": [], "nextPageToken": "again", "pageSize": 1, "totalSize": 1}
        return page({"jsonrpc": "2.0", "id": asked.json["id"], "result": result})

    site = Site({"/card.json": page(card()), "/rpc": rpc})
    async with connect("http://agent.test/card.json", transport=AsgiTransport(site)) as client:
        with pytest.raises(InvalidAgentResponse, match="of the list repeat"):
            asked = ask(client)
            await (anext(asked) if hasattr(asked, "__anext__") else asked)
    assert len(site.asked) == 3


async def test_a_finished_task_can_be_subscribed_to() -> None:
    async with connect(agent) as it:
        done = await it("say done")
        (piece,) = [piece async for piece in it.subscribe(done.id)]
        assert piece.text == "done"


async def test_errors_are_the_agents_own() -> None:
    async with connect(agent) as it:
        with pytest.raises(TaskNotFound):
            await it.get("nothing")
        with pytest.raises(A2AError):
            await it.extended_card()
    async with connect(agent.app(store="memory:", push=None)) as it:
        with pytest.raises(PushNotSupported):
            await it.create_push((await it("say hi")).id, "https://hooks.example/")


async def test_push_configs_are_made_found_and_deleted() -> None:
    async with connect(agent) as it:
        task = await it.send("wait", wait=False)
        made = await it.create_push(
            task.id, "https://hooks.example/", token="t", scheme="Bearer", credentials="c"
        )
        assert made.id
        assert await it.get_push(task.id, made.id) == made
        assert [config.id for config in await it.list_push(task.id)] == [made.id]
        await it.delete_push(task.id, made.id)
        assert await it.list_push(task.id) == []
        await task.cancel()


async def test_the_same_key_is_the_same_message() -> None:
    async with connect(agent) as it:
        first, second = [await it.send("say once", key="k") for _ in range(2)]
        assert first.id == second.id


async def test_leaving_a_stream_early_closes_it() -> None:
    async with connect(agent) as it:
        async with it.stream("wait") as stream:
            async for piece in stream:
                if piece.status == "waiting":
                    break
        assert stream.task is not None
        await it.cancel(stream.task.id)


async def test_concurrent_opens_of_a_client_share_one_connection() -> None:
    site = Site({"/card.json": page(card(), cache_control="no-store"), "/rpc": answer})
    client = connect("http://agent.test/card.json", transport=AsgiTransport(site))
    await asyncio.gather(*(client.open() for _ in range(3)))
    link = client.link
    assert site.paths() == ["/card.json"]
    assert [str(reply) for reply in await asyncio.gather(client("a"), client("b"))] == ["fine", "fine"]
    assert client.link is link
    await client.close()


async def test_a_cancelled_open_does_not_cancel_the_other_opens() -> None:
    asked = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not asked.is_set():
            asked.set()
            await asyncio.Event().wait()  # the first is never answered
        await site(scope, receive, send)

    site = Site({"/.well-known/agent-card.json": page(card())})
    client = connect(app)
    first, second = (asyncio.create_task(client.open()) for _ in range(2))
    await asked.wait()
    first.cancel()
    assert (await second).card.name == "Fake"
    assert first.cancelled()
    await client.close()


async def test_a_client_closed_while_it_opens_is_closed() -> None:
    site = Site({"/card.json": page(card())})
    client = connect("http://agent.test/card.json", transport=AsgiTransport(site))
    await asyncio.gather(client.open(), client.close())
    with pytest.raises(RuntimeError, match="not connected"):
        _ = client.card


async def test_a_client_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(RuntimeError, match="async with connect"):
        await connect(agent)("hello")
