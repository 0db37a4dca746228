"""Client and server over gRPC, in both versions, over real sockets, some of which break."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from dragoman import Agent, Part, Turn, connect
from dragoman.client import ClientCertificate, Policy, routes
from dragoman.client.authorize import is_within_origin
from dragoman.client.discover import grpc_url
from dragoman.client.transport.transport import NotSent
from dragoman.dialects.proto.messages import V0_3
from dragoman.errors import (
    Forbidden,
    InvalidAgentResponse,
    TaskNotCancelable,
    TaskNotFound,
    Unauthenticated,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.card import AgentCard, Capabilities, Interface
from dragoman.model.ops import Principal
from dragoman.model.task import TaskState
from dragoman.server.app import App
from dragoman.server.application import application
from dragoman.server.grpc.server import Grpc as Server
from dragoman.server.grpc.server import Tls
from dragoman.server.mount import Mount
from dragoman.server.runtime import running
from tests.client.certificates import Authority
from tests.client.wirecutter import Wire
from tests.ports import free_port
from tests.requirements import older
from tests.server.wire import Scripted, reply
from tests.serving import Server as Process

every_version = pytest.mark.parametrize("version", ["1.0", "0.3"])
HASTY = Policy(shortest=0.01, longest=0.05)


class Helper:
    """An agent, and how far it may go on counting."""

    def __init__(self) -> None:
        self.agent = agent = Agent("Helper", description="Helps", input_modes=["*/*"], output_modes=["*/*"])
        self.steps = asyncio.Semaphore(0)
        self.turns = 0

        @agent.skill(default=True)
        async def do(turn: Turn) -> AsyncIterator[Any]:
            """Does what the text says."""
            self.turns += 1
            match turn.text:
                case "ask":
                    yield f"so it is {await turn.ask('Which city?')}"
                case "count":
                    for n in range(10):
                        await self.steps.acquire()
                        yield f"{n} "
                case "wait":
                    await turn.status("waiting")
                    await asyncio.Event().wait()
                case text:
                    yield text.upper()

        @agent.skill
        async def parts(turn: Turn) -> Any:
            """Gives back what it got."""
            return list(turn.message.parts)

    def count(self, steps: int) -> None:
        for _ in range(steps):
            self.steps.release()


@asynccontextmanager
async def serving(helper: Helper, **options: Any) -> AsyncIterator[str]:
    async with running(application(helper.agent, store="memory:", grpc_port=0, drain=0, **options)) as url:
        yield url


def over_grpc(url: str, version: str = "1.0", **more: Any) -> Any:
    return connect(url, binding="GRPC", version=version, policy=HASTY, **more)


def binding_of(agent: Any) -> Any:
    return agent.link.peer._peer


# --- talking


@every_version
async def test_a_message_is_answered_over_grpc(version: str) -> None:
    async with serving(Helper()) as url, over_grpc(url, version) as agent:
        assert (agent.version, agent.link.peer.route.binding) == (
            "1.0" if version == "1.0" else "0.3",
            "GRPC",
        )
        reply = await agent("hello")
        assert reply.text == "HELLO"
        assert (await agent.get(reply.id)).state is TaskState.COMPLETED
        assert agent.link.peer.is_dragoman
        asked = await agent("ask")
        assert asked.asks and (await asked.answer("Rome")).text == "so it is Rome"


@every_version
async def test_every_kind_of_part_survives(version: str) -> None:
    sent = [
        Part(text="text"),
        Part(raw=b"\x00\xffPNG", filename="a.png", media_type="image/png"),
        Part(raw=b"words", media_type="text/plain"),
        Part(url="https://files.example/x", media_type="image/png"),
        Part(data={"whole": 7, "half": 0.5, "none": None, "list": [1, [2]]}),
        Part(data=[1, 2, 3]),
    ]
    async with serving(Helper()) as url, over_grpc(url, version) as agent:
        reply = await agent(*sent, skill="parts")
        assert [part for artifact in reply.task.artifacts for part in artifact.parts] == sent
        data = reply.data
        assert type(data["whole"]) is int and type(data["half"]) is float


@every_version
async def test_a_stream_is_read_to_its_end(version: str) -> None:
    helper = Helper()
    async with serving(helper) as url, over_grpc(url, version) as agent:
        helper.count(10)
        async with agent.stream("count") as stream:
            pieces = [piece.text async for piece in stream if piece.text]
        assert "".join(pieces) == "0 1 2 3 4 5 6 7 8 9 " == stream.reply.text


@every_version
async def test_errors_keep_their_type_over_grpc(version: str) -> None:
    async with serving(Helper()) as url, over_grpc(url, version) as agent:
        with pytest.raises(TaskNotFound):
            await agent.get("nowhere")
        reply = await agent("hello")
        with pytest.raises(TaskNotCancelable):
            await agent.cancel(reply.id)


async def test_tasks_are_listed_and_canceled() -> None:
    async with serving(Helper()) as url, over_grpc(url) as agent:
        started = await agent.send("wait", wait=False)
        assert [task.id async for task in agent.list(state="working")] == [started.id]
        assert (await agent.cancel(started.id)).state is TaskState.CANCELED
        assert (await agent.cancel(started.id)).state is TaskState.CANCELED


async def test_0_3_cannot_list_tasks() -> None:
    async with serving(Helper()) as url, over_grpc(url, "0.3") as agent:
        with pytest.raises(UnsupportedOperation, match=r"0\.3, which has no ListTasks"):
            [task async for task in agent.list()]


def named(name: str) -> Agent:
    agent = Agent(name)

    @agent.skill
    async def say(turn: Turn) -> str:
        """Says its name."""
        return name

    return agent


async def test_several_agents_share_a_port() -> None:
    first, second = named("First"), named("Second")
    app = application(first, second, store="memory:", grpc_port=0)
    async with running(app) as url:
        for each in (first, second):
            async with over_grpc(f"{url}/{each.id}") as agent:
                assert (await agent("who?")).text == each.name


async def test_the_card_lists_every_interface_newest_version_first() -> None:
    async with serving(Helper(), grpc_public="agents.example:443") as url, connect(url) as agent:
        ways = [
            (each.protocol_version, each.protocol_binding, each.url)
            for each in agent.card.supported_interfaces
        ]
        assert [version for version, _, _ in ways] == ["1.0"] * 3 + ["0.3"] * 3
        assert ("1.0", "GRPC", "agents.example:443") in ways and ("0.3", "GRPC", "agents.example:443") in ways
        assert agent.link.peer.route.binding == "JSONRPC"


# --- wires that break


def port_of(app: App) -> int:
    (server,) = [binding for binding in app._bindings if isinstance(binding, Server)]
    return server.port


@asynccontextmanager
async def wired(helper: Helper) -> AsyncIterator[tuple[str, Wire]]:
    """The helper behind a wire."""
    async with Wire() as wire:
        app = application(helper.agent, store="memory:", grpc_port=0, drain=0, grpc_public=wire.address)
        async with running(app) as url:
            wire.upstream = port_of(app)
            yield url, wire


@every_version
async def test_a_cut_stream_goes_on_where_it_was(version: str) -> None:
    helper = Helper()
    async with wired(helper) as (url, wire), over_grpc(url, version) as agent:
        pieces: list[str] = []
        async with asyncio.timeout(15), agent.stream("count") as stream:
            helper.count(4)
            async for piece in stream:
                pieces += [piece.text] if piece.text else []
                if len("".join(pieces)) in (8, 14):
                    wire.cut()
                    helper.count(3)
        assert "".join(pieces) == "0 1 2 3 4 5 6 7 8 9 "
        assert wire.connections >= 3 and helper.turns == 1


async def test_a_send_whose_answer_was_lost_is_not_done_twice() -> None:
    helper = Helper()
    async with wired(helper) as (url, wire), over_grpc(url) as agent:
        await agent("hello")  # now it is known to be one of ours
        helper.turns = 0
        sending = asyncio.create_task(agent.send("count"))
        async with asyncio.timeout(15):
            while not helper.turns:
                await asyncio.sleep(0)
            wire.cut()
            helper.count(10)
            assert (await sending).text.startswith("0 1 2")
        assert helper.turns == 1


async def test_a_dead_stream_is_noticed() -> None:
    helper = Helper()
    quick = Policy(shortest=0.01, longest=0.05, silence=0.3)
    async with wired(helper) as (url, wire), connect(url, binding="GRPC", policy=quick) as agent:
        binding_of(agent)._probe_timeout = 0.3
        pieces: list[str] = []
        async with asyncio.timeout(15), agent.stream("count") as stream:
            helper.count(4)
            async for piece in stream:
                pieces += [piece.text] if piece.text else []
                if len("".join(pieces)) == 8:
                    wire.replace()
                    helper.count(6)
        assert "".join(pieces) == "0 1 2 3 4 5 6 7 8 9 " and helper.turns == 1


async def test_a_quiet_stream_is_left_alone() -> None:
    helper = Helper()
    quick = Policy(shortest=0.01, longest=0.05, silence=0.05)
    async with wired(helper) as (url, wire), connect(url, binding="GRPC", policy=quick) as agent:
        async with asyncio.timeout(15), agent.stream("count") as stream:
            events = aiter(stream)
            await anext(events)
            probes = 0
            lives = binding_of(agent)._is_alive

            async def counted(channel: Any) -> bool:
                nonlocal probes
                probes += 1
                if probes == 3:
                    helper.count(10)
                return bool(await lives(channel))

            binding_of(agent)._is_alive = counted
            async for _ in events:
                pass
        assert probes >= 3 and wire.connections == 1


async def test_a_server_that_is_not_there_was_never_asked() -> None:
    async with Wire() as wire:
        address = wire.address
    card = AgentCard(
        name="Gone",
        capabilities=Capabilities(streaming=True),
        supported_interfaces=(Interface(url=address, protocol_binding="GRPC", protocol_version="1.0"),),
    )
    async with connect(card, policy=Policy(attempts=2, shortest=0.01, longest=0.02)) as agent:
        with pytest.raises(NotSent):
            await agent.send("hello")


async def test_a_port_without_grpc_is_called_over_the_next_binding_of_the_card() -> None:
    async with running(application(Helper().agent, store="memory:")) as url:
        card = AgentCard(
            name="Wrong",
            supported_interfaces=(
                Interface(
                    url=url.partition("://")[2].strip("/"), protocol_binding="GRPC", protocol_version="1.0"
                ),
                Interface(url=url, protocol_binding="JSONRPC", protocol_version="1.0"),
            ),
        )
        async with connect(card, policy=HASTY) as agent:
            assert await agent("hello") == "HELLO"


async def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    """Its tasks are where they were, and the stream goes on."""
    helper = Helper()
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with Wire() as wire:
        options: dict[str, Any] = {"store": store, "drain": 0, "grpc_port": 0, "grpc_public": wire.address}
        pieces: list[str] = []
        async with asyncio.timeout(20):
            before = application(helper.agent, **options)
            async with running(before) as url:
                wire.upstream = port_of(before)
                agent = over_grpc(url)
                await agent.open()
                stream = agent.stream("count")
                events = aiter(stream)
                helper.count(4)
                while len("".join(pieces)) < 8:
                    pieces.append((await anext(events)).text or "")
            after = application(helper.agent, **options)
            async with running(after):
                wire.upstream = port_of(after)
                helper.count(20)
                async for piece in events:
                    pieces.append(piece.text or "")
                await agent.close()
        assert "".join(pieces) == "0 1 2 3 4 5 6 7 8 9 "


PACED = Path(__file__).with_name("paced.py")


async def test_a_killed_server_is_started_again_and_the_stream_goes_on(tmp_path: Path) -> None:
    port = free_port()
    async with (
        Process(PACED, store=tmp_path / "tasks.db", options=("--grpc-port", str(port))) as server,
        over_grpc(server.url) as agent,
    ):
        pieces: list[str] = []
        async with asyncio.timeout(18), agent.stream("40") as stream:
            async for piece in stream:
                pieces.append(piece.artifact.text if piece.artifact else "")
                if len("".join(pieces)) > 20 and server.lives == 1:
                    await server.kill()
                    await server.start()
        assert "".join(pieces) == "".join(f"{n} " for n in range(40))
        assert server.lives == 2


async def test_the_command_serves_grpc_until_a_signal_stops_it() -> None:
    async with Process(PACED, options=("--grpc-port", str(free_port()), "--drain", "0")) as server:
        async with over_grpc(server.url) as agent:
            async with agent.stream("100000") as stream:
                await anext(aiter(stream))
                server.signal(signal.SIGTERM)
                assert await server.ended() == 0


# --- peers that are not ours


async def test_an_agent_that_only_knows_0_3_gets_0_3() -> None:
    """Whatever its card says."""
    service = Scripted(result=reply("hello"))
    server = Server([Mount(service=service, card=AgentCard(name="Old"), agent="old", versions=("0.3",))])
    await server.start()
    where = Interface(url=f"127.0.0.1:{server.port}", protocol_binding="GRPC", protocol_version="1.0")
    async with connect(AgentCard(name="Old", supported_interfaces=(where,)), policy=HASTY) as agent:
        assert (await agent.send("hi")).text == "hello"
        assert agent.version == "0.3"
    await server.stop()


async def test_another_server_is_polled_when_its_stream_breaks() -> None:
    """A 0.3 server that numbers nothing and hangs up after the first event."""
    task = V0_3.Task(id="t1", context_id="c1")
    task.status.state = 2

    async def stream(body: bytes, context: Any) -> None:
        await context.write(V0_3.StreamResponse(task=task).SerializeToString())

    async def get(body: bytes, context: Any) -> bytes:
        task.status.state = 3
        task.artifacts.add(artifact_id="a").parts.add(text="done")
        return task.SerializeToString()

    methods = {
        "SendStreamingMessage": grpc.unary_stream_rpc_method_handler(stream),
        "GetTask": grpc.unary_unary_rpc_method_handler(get),
    }
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a2a.v1.A2AService", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    document = {
        "name": "Stranger",
        "protocolVersion": "0.3.0",
        "url": f"127.0.0.1:{port}",
        "preferredTransport": "GRPC",
        "capabilities": {"streaming": True},
    }
    async with asyncio.timeout(15), connect(document, policy=HASTY) as agent:
        assert (await agent("hi")).text == "done"
    await server.stop(None)


# --- safety


class Door:
    """Lets in who shows the word, or a certificate."""

    challenge = "Bearer"

    def __init__(self, word: str = "") -> None:
        self.word = word
        self.certificates: list[bytes] = []

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        self.certificates.append(certificate)
        if self.word and headers.get("authorization") != f"Bearer {self.word}":
            raise Unauthenticated("who are you?")
        if not self.word and not certificate:
            raise Forbidden("no certificate")
        return Principal(id="ann")


@asynccontextmanager
async def guarded(door: Door, **options: Any) -> AsyncIterator[AgentCard]:
    """The card of an agent behind a door."""
    service = Scripted(result=reply("come in"))
    server = Server([Mount(service=service, card=AgentCard(name="X"), authenticator=door)], **options)
    await server.start()
    scheme = "grpcs" if options.get("tls") else "grpc"
    url = f"{scheme}://localhost:{server.port}"
    yield AgentCard(
        name="X",
        supported_interfaces=(Interface(url=url, protocol_binding="GRPC", protocol_version="1.0"),),
    )
    await server.stop()


async def test_a_credential_is_shown_and_renewed_once() -> None:
    words = iter(["stale", "fresh"])
    async with guarded(Door("fresh")) as card:
        async with connect(card, credentials=lambda: next(words), policy=HASTY) as agent:
            assert (await agent.send("hi")).text == "come in"
        async with connect(card, credentials="wrong", policy=HASTY) as agent:
            with pytest.raises(Unauthenticated):
                await agent.send("hi")


@pytest.mark.parametrize(
    ("url", "origin", "may"),
    [
        ("grpc://a.example:50051", "http://a.example:80", True),
        ("grpcs://a.example:50051", "http://a.example:80", True),
        ("grpcs://A.example:50051", "https://a.example:443", True),
        ("grpc://a.example:50051", "https://a.example:443", False),
        ("grpcs://b.example:443", "https://a.example:443", False),
        ("https://a.example:444", "https://a.example:443", False),
    ],
)
def test_a_credential_goes_to_grpc_on_the_same_host_if_that_is_as_safe(
    url: str, origin: str, may: bool
) -> None:
    assert is_within_origin(url, origin) is may


@pytest.mark.parametrize(
    ("url", "found_at", "address"),
    [
        ("a.example:50051", "https://a.example/card", "grpcs://a.example:50051"),
        ("a.example:50051", "http://a.example/card", "grpc://a.example:50051"),
        ("127.0.0.1:50051", "", "grpc://127.0.0.1:50051"),
        ("a.example:50051", "", "grpcs://a.example:50051"),
        ("a.example", "", "grpcs://a.example:443"),
        ("http://a.example:5/", "https://a.example/card", "grpc://a.example:5"),
        ("dns:///a.example:5", "", "grpcs://a.example:5"),
        ("0.0.0.0:5", "http://here.example:80/card", "grpc://here.example:5"),
        ("[::]:5", "http://[::1]:80/card", "grpc://[::1]:5"),
    ],
)
def test_an_address_is_as_safe_as_its_card(url: str, found_at: str, address: str) -> None:
    assert grpc_url(url, found_at) == address


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidAgentResponse):
        grpc_url("a.example:port", "")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority()


def written(authority: Authority, directory: Path) -> str:
    """The authority's own certificate, as a file."""
    path = directory / "authority.pem"
    trusted = authority.client().get_ca_certs(binary_form=True)
    path.write_text("".join(map(ssl.DER_cert_to_PEM_cert, trusted)))
    return str(path)


def pair(authority: Authority, name: str, directory: Path) -> str:
    (directory / name).mkdir()
    return authority.files(name, directory / name)


@older("X29")
async def test_tls_is_used_and_verified(authority: Authority, tmp_path: Path) -> None:
    mine = pair(authority, "localhost", tmp_path)
    async with guarded(Door("word"), tls=Tls(certificate=mine, key=mine)) as card:
        async with connect(card, credentials="word", tls=authority.client(), policy=HASTY) as agent:
            assert (await agent.send("hi")).text == "come in"
        once = Policy(attempts=1)
        async with connect(card, credentials="word", tls=Authority().client(), policy=once) as agent:
            with pytest.raises(NotSent):
                await agent.send("hi")


async def test_mutual_tls_accepts_known_certificates(authority: Authority, tmp_path: Path) -> None:
    mine, door = pair(authority, "localhost", tmp_path), Door()
    tls = Tls(certificate=mine, key=mine, client_ca=written(authority, tmp_path))
    caller = ClientCertificate(certificate=pair(authority, "ann", tmp_path))
    async with guarded(door, tls=tls) as card:
        async with connect(card, credentials=caller, tls=authority.client(), policy=HASTY) as agent:
            assert (await agent.send("hi")).text == "come in"
        assert door.certificates[0].startswith(b"\x30")  # DER
        async with connect(card, tls=authority.client(), policy=Policy(attempts=1)) as agent:
            with pytest.raises(NotSent):
                await agent.send("hi")
    assert len(door.certificates) == 1


async def test_a_context_that_checks_nothing_is_refused(authority: Authority) -> None:
    careless = ssl.create_default_context()
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    where = Interface(url="grpcs://localhost:1", protocol_binding="GRPC", protocol_version="1.0")
    with pytest.raises(ValueError, match="always checks the server"):
        async with connect(AgentCard(name="X", supported_interfaces=(where,)), tls=careless):
            pass


@pytest.mark.parametrize("options", [{}, {"proxy": ""}])
async def test_no_proxy_of_the_environment_stands_before_this_machine(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving(Helper()) as url, connect(url, binding="GRPC", timeout=10, **options) as agent:
        assert await agent("hello") == "HELLO"


async def test_a_proxy_that_was_named_is_asked() -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    there = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    interface = Interface(url="grpc://agent.test:50051", protocol_binding="GRPC", protocol_version="1.0")
    card = AgentCard(name="Far", supported_interfaces=(interface,))
    async with server, connect(card, proxy=there, policy=Policy(attempts=1)) as agent:
        with pytest.raises(Unreachable):
            await agent.send("hello", timeout=10)
    assert asked[0].startswith(b"CONNECT agent.test:50051 HTTP/1.1\r\n")


async def test_without_grpcio_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(routes.BINDINGS, "GRPC")
    monkeypatch.setattr("dragoman.server.application.find_spec", lambda name: None)
    where = Interface(url="localhost:1", protocol_binding="GRPC", protocol_version="1.0")
    with pytest.raises(UnsupportedOperation, match=r"pip install 'dragoman\[grpc\]'"):
        async with connect(AgentCard(name="X", supported_interfaces=(where,)), binding="GRPC"):
            pass
    with pytest.raises(SystemExit, match=r"pip install 'dragoman\[grpc\]'"):
        application(Helper().agent, store="memory:", grpc_port=0)
