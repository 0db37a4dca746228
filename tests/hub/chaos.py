"""Three hubs on PostgreSQL and NATS under load, while hubs are killed and paused, and the database and NATS restart.

    python -m tests.hub.chaos --seconds 120 --seed 7      prints figures, and fails if something happened twice or not at all

What is checked at the end: no model call on record was asked again, no command that may not repeat ran twice, each note was written
once, no message of a conversation is lost or doubled, each schedule fired once, a tenant never had more requests than it may, a command
that two people approved at two hubs ran once, no call began when a budget was used up, each message over A2A began one task, each
file that a hub accepted is there as it was sent, and the folder of files has no content that nobody knows.
Then a tenant is disabled while requests of it run at every hub, and another one while a hub stands still.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct

from dragoman.client.transport.network import HttpTransport
from dragoman.dialects.sse import SseReader
from dragoman.errors import A2AError
from dragoman.hub.store.artifacts import INLINE_BYTES
from dragoman.hub.store.blobs import PIECE_BYTES
from tests import nats, postgres
from tests.hub.house import ADMIN
from tests.serving import Server
from tests.waiting import elapse, until, until_works

ROOT = Path(__file__).parent.parent.parent
TTL = 3.0
LIMIT = 2
SPENDERS, CALL_TOKENS = 4, 200
"""Callers of a tenant with a budget, and what a call of the model uses."""
SENDERS = 2
"""Callers over A2A."""
BUDGET_PER_DISRUPTION = 3000
KINDS = ("kill", "pause", "database", "nats")


class Failed(Exception):
    """A hub could not be reached, is overloaded, or broke off: try again."""


class UsedUp(Exception):
    """The budget of the tenant is used up."""


class Figures(Struct):
    seconds: float = 0.0
    messages: int = 0
    asked: int = 0
    asked_again: int = 0
    """Calls that were asked again because nothing of the first is on record."""
    commands: int = 0
    interrupted: int = 0
    """Commands of which nobody knows whether they ran; none ran again."""
    refused: int = 0
    """Commands that did not run in time, and whose agent was told so: on a busy machine they wait for each other for too long."""
    schedules: int = 0
    approved: int = 0
    sent: int = 0
    """Messages over A2A."""
    files: int = 0
    spent: int = 0
    """Tokens of the tenant with a budget. A call that was interrupted counts with an estimate."""
    budget: int = 0
    not_counted: int = 0
    """Calls of that tenant that ended and were not counted: their hub was killed."""
    most_at_once: int = 0
    limited: int = 0
    retries: int = 0
    taken_over: int = 0
    stopped_after: float = 0.0
    """Seconds from disabling a tenant to the last word of a model for it, at any hub; at one that stood still, from when it went on."""
    disruptions: dict[str, int] = {}


class Hubs:
    def __init__(self, folder: Path, database: postgres.Postgres, seed: int, *, away: float = 1.0) -> None:
        """`away`: for how many seconds the database is away at most."""
        self.folder, self.dice, self.figures = folder, random.Random(seed), Figures()
        self._away = away
        self._database, self._name = database, f"chaos_{uuid4().hex}"
        self.store = database.database(self._name)
        self._nats = nats.Nats()
        self._stack = AsyncExitStack()
        self.nodes: list[Server] = []
        self.asked = folder / "asked"
        self.over = False
        self.commands: Counter[str] = Counter()
        self.told: dict[str, Any] = {}
        self._sent: dict[tuple[str, int], list[str]] = defaultdict(list)
        self._approved: list[str] = []
        self._messages: list[str] = []
        self._answered: dict[str, float] = {}
        """When the caller of a request had its whole answer."""
        self._files: dict[int, bytes] = {}
        """The digest of each file that a hub accepted, by its id."""

    async def __aenter__(self) -> Hubs:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        for _ in range(3):
            node = Server(env={"PYTHONPATH": paths}, start_seconds=60)
            words = [str(node.port), self.store, self._nats.url, str(self.folder), str(TTL)]
            node.command = [sys.executable, "-m", "tests.hub.chaos_node", *words]
            self.nodes.append(node)
            self._stack.push_async_exit(node)
        await asyncio.gather(*(node.start() for node in self.nodes))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        self._nats.kill()

    # -- talking -----------------------------------------------------------------------------------------------

    async def call(
        self, token: str, method: str, path: str, body: Any = None, node: int | None = None
    ) -> Any:
        """The answer of a hub, sooner or later. None: 409, somebody else was faster."""
        raw = b"" if body is None else msgspec.json.encode(body)
        return msgspec.json.decode(await self._bytes(token, method, path, raw, node) or b"null")

    async def _bytes(
        self, token: str, method: str, path: str, raw: bytes = b"", node: int | None = None
    ) -> bytes:
        async def attempt() -> bytes:
            http = HttpTransport()
            try:
                async with asyncio.timeout(20):
                    url = (self.dice.choice(self.nodes) if node is None else self.nodes[node]).url
                    answer = await http.request(method, url + path, {"Authorization": f"Bearer {token}"}, raw)
                    text = await answer.read()
            except (A2AError, TimeoutError) as error:
                raise Failed(str(error)) from None
            finally:
                await http.close()
            if answer.status >= 500 or answer.status == 429:
                raise Failed(text.decode())
            assert answer.status < 300 or answer.status == 409, (path, answer.status, text)
            return text if answer.status < 300 else b""

        found: bytes = await until_works(attempt, Failed, seconds=90)
        return found

    async def stream(
        self, token: str, path: str, text: str = "", *, key: str = "", node: int | None = None
    ) -> list[tuple[str, Any]]:
        """The events of a request, up to `done`; without a `text` those of one that is known. Raises `Failed` and `UsedUp`."""
        url = (self.dice.choice(self.nodes) if node is None else self.nodes[node]).url
        http, reader, told = HttpTransport(), SseReader(), []
        headers = {"Authorization": f"Bearer {token}", **({"Idempotency-Key": key} if key else {})}
        try:
            async with asyncio.timeout(45):
                raw = msgspec.json.encode({"message": text}) if text else b""
                response = await http.request("POST" if text else "GET", url + path, headers, raw)
                if response.status != 200:
                    why = (await response.read()).decode()
                    if response.status == 429 and "tokens_budget" in why:
                        raise UsedUp
                    assert response.status >= 429, (response.status, why)
                    raise Failed(f"{response.status} {why}")
                async for chunk in response.chunks():
                    told += [(frame.event, msgspec.json.decode(frame.data)) for frame in reader.feed(chunk)]
                    if told and told[-1][0] == "done":
                        if told[-1][1].get("error_code") == "internal_error":
                            raise Failed(str(told[-1]))
                        return told
        except (A2AError, TimeoutError) as error:
            raise Failed(str(error)) from None
        finally:
            await http.close()
        raise Failed("the stream broke off")

    async def tenant(self, name: str, policy: Any = None, **limits: int) -> tuple[int, str]:
        made = await self.call(ADMIN, "POST", "/v1/admin/tenants", {"name": name})
        id: int = made["tenant"]["id"]
        if limits:
            await self.call(ADMIN, "PATCH", f"/v1/admin/tenants/{id}", limits)
        if policy:
            await self.call(ADMIN, "PATCH", f"/v1/admin/tenants/{id}/policy", policy)
        return id, made["token"]

    # -- load --------------------------------------------------------------------------------------------------

    async def talk(self, tenant: str, token: str) -> None:
        """Say one thing after another in a conversation, each as often as it takes to have an answer."""
        talk = (await self.call(token, "POST", "/v1/conversations", {}))["id"]
        while not self.over:
            name = f"{tenant}-{talk}-{len(self._sent[token, talk])}"
            told = await self._insist(token, f"/v1/conversations/{talk}/messages", f"<<work {name}>>", name)
            assert told[-1][1]["ok"], told[-1]
            self._note_commands(name, told)
            self._sent[token, talk].append(f"<<work {name}>>")

    def _note_commands(self, name: str, told: list[tuple[str, Any]]) -> None:
        commands = [data for kind, data in told if kind == "tool_call"]
        self.told[name] = commands
        self.commands[name] = sum(bool(each.get("interrupted")) for each in commands)
        self.figures.refused += sum(
            not each["ok"] and not each.get("interrupted")
            for each in commands
            if each["tool"].startswith("exec")
        )

    async def approve(self, token: str) -> None:
        """Have commands run that need an approval, and give it twice, at two hubs at once."""
        while not self.over:
            name = f"approved-{len(self._approved)}"
            told = await self._insist(token, "/v1/orchestrate", f"<<asks {name}>>", name)
            assert told[-1][1]["error_code"] == "input-required", told[-1]
            request = told[-1][1]["request_id"]
            listed = (await self.call(token, "GET", "/v1/requests"))["requests"]
            (seen,) = [each["last_seq"] for each in listed if each["request_id"] == request]
            path, yes = f"/v1/requests/{request}/answer", {"approved": True, "last_seq": seen}
            nodes = self.dice.sample(range(len(self.nodes)), 2)
            await asyncio.gather(*(self.call(token, "POST", path, yes, node) for node in nodes))
            events = f"/v1/requests/{request}/events?since_seq={seen}"
            told = await self._insist(token, events, "", name)
            assert told[-1][1]["ok"], told[-1]
            self._note_commands(name, told)
            self._approved.append(name)

    async def send(self, token: str, n: int) -> None:
        """Send one message after another over A2A, each as often as it takes to have its task, at any hub."""
        for count in itertools.count():
            if self.over:
                return
            name = f"sent-{n}-{count}"
            parts = [{"kind": "text", "text": f"<<hold {name}>>"}]
            params = {"message": {"role": "user", "messageId": name, "parts": parts}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
            told = await self.call(token, "POST", "/v1/a2a/agents/index", body)
            assert told["result"]["status"]["state"] == "completed", told
            self._answered[name] = time.time()
            self._messages.append(told["result"]["id"])

    async def spend(self, token: str, n: int) -> None:
        """Use up a budget."""
        for count in itertools.count():
            try:
                name = f"spends-{n}-{count}"
                told = await self._insist(token, "/v1/orchestrate", f"<<hold {name}>>", name)
            except UsedUp:
                return
            if not told[-1][1]["ok"]:
                assert told[-1][1]["error_code"] == "budget_exhausted", told[-1]
                return

    async def upload(self, token: str) -> None:
        """Store files that are too large for the table, each of them once, and replace one again and again."""
        talk = 0
        for count in itertools.count():
            if self.over:
                return
            if count % 100 == 0:  # a conversation has a limit
                talk = (await self.call(token, "POST", "/v1/conversations", {}))["id"]
            content = self.dice.randbytes(INLINE_BYTES + self.dice.randrange(1, PIECE_BYTES // 2))
            for name in (f"file-{count}", "replaced"):
                path = f"/v1/conversations/{talk}/artifacts?path={name}"
                made = msgspec.json.decode(await self._bytes(token, "PUT", path, content))
                if name != "replaced":
                    self._files[made["id"]] = sha256(content).digest()
                got = await self._bytes(token, "GET", f"/v1/artifacts/{made['id']}/raw")
                assert got == content or name == "replaced", f"{name} is not as it was sent"
            await elapse(0.1)

    async def crowd(self, token: str, n: int) -> None:
        """Ask for more at once than a tenant may."""
        count = 0
        while not self.over:
            name, count = f"crowd-{n}-{count}", count + 1
            told = await self._insist(token, "/v1/orchestrate", f"<<hold {name}>>", name)
            assert told[-1][1]["ok"], told[-1]

    async def _insist(self, token: str, path: str, text: str, key: str) -> list[tuple[str, Any]]:
        async def attempt() -> list[tuple[str, Any]]:
            try:
                return await self.stream(token, path, text, key=key)
            except Failed as failed:
                if str(failed).startswith("429"):
                    self.figures.limited += 1
                    await elapse(0.1)
                else:
                    self.figures.retries += 1
                    await elapse(0.05)
                raise

        found: list[tuple[str, Any]] = await until_works(attempt, Failed, seconds=120)
        if found[-1][1]["ok"]:
            self._answered[key] = time.time()
        return found

    async def plan(self, tenant: int, token: str, n: int, seconds: float) -> None:
        """Schedules that are due while hubs die."""
        for i in range(n):
            body = {"agent": "index", "schedule": "in 1 minute", "message": f"<<hold plan-{i}>>"}
            made = await self.call(token, "POST", "/v1/schedules", body)
            due = int(time.time() + self.dice.uniform(1.0, seconds))
            await self._sql(
                f"update hub.schedules set next_fire_at = {due} where id = {made['scheduled_task']['id']}"
            )

    async def _sql(self, *statements: str) -> list[list[Any]]:
        def execute() -> list[list[Any]]:
            import asyncpg

            async def work() -> list[list[Any]]:
                db = await asyncpg.connect(self.store)
                try:
                    return [[tuple(row) for row in await db.fetch(each)] for each in statements]
                finally:
                    await db.close()

            return asyncio.run(work())

        async def attempt() -> list[list[Any]]:
            return await asyncio.to_thread(execute)

        return await until_works(attempt, Exception, seconds=30)

    # -- disruption --------------------------------------------------------------------------------------------

    async def disrupt(self, kind: str) -> None:
        self.figures.disruptions[kind] = self.figures.disruptions.get(kind, 0) + 1
        node = self.dice.choice(self.nodes)
        if kind == "kill":
            await node.kill()
            await elapse(self.dice.uniform(0.0, 1.0))
            await node.start()
        elif kind == "pause":
            node.signal(signal.SIGSTOP)
            await elapse(TTL * 1.5)
            node.signal(signal.SIGCONT)
        elif kind == "database":
            await asyncio.to_thread(self._database.stop, self.dice.choice(("fast", "immediate")))
            await elapse(self.dice.uniform(0.0, self._away))
            await asyncio.to_thread(self._database.start)
        else:
            self._nats.kill()
            await elapse(self.dice.uniform(0.0, 1.0))
            await asyncio.to_thread(self._nats.start)

    async def run(self, disruptions: list[str], *, talks: int, pause: tuple[float, float]) -> Figures:
        began = time.monotonic()
        tenants = [await self.tenant(f"t{n}") for n in range(2)]
        _, limited = await self.tenant("limited", max_concurrent=LIMIT)
        planner = await self.tenant("planner")
        approver = await self.tenant("approver", {"approve": ["/exec"]})
        self.figures.budget = BUDGET_PER_DISRUPTION * len(disruptions)
        spender = await self.tenant("spender", {"tokens_per_day": self.figures.budget})
        storer = await self.tenant("storer")
        sender = await self.tenant("sender")
        async with asyncio.TaskGroup() as group:
            for n in range(talks):
                group.create_task(self.talk(f"t{n % 2}", tenants[n % 2][1]))
            for n in range(2 * LIMIT):
                group.create_task(self.crowd(limited, n))
            group.create_task(self.approve(approver[1]))
            for n in range(SPENDERS):
                group.create_task(self.spend(spender[1], n))
            group.create_task(self.upload(storer[1]))
            for n in range(SENDERS):
                group.create_task(self.send(sender[1], n))
            await self.plan(*planner, len(disruptions) + 2, len(disruptions) * (pause[1] + 2.0))
            for kind in disruptions:
                await elapse(self.dice.uniform(*pause))
                await self.disrupt(kind)
            await elapse(pause[0])
            self.over = True
        await self._check_schedules(planner[1], len(disruptions) + 2)
        self._check_calls()
        self._check_limit()
        for (token, talk), sent in self._sent.items():
            await self._check_talk(token, talk, sent)
        for id, token in tenants:
            await self._check_commands(id, token)
        self._check_ran(approver[0], self._approved)
        self.figures.approved = len(self._approved)
        await self._check_budget(*spender)
        await self._check_files(*storer)
        await self._check_messages(sender[0])
        await self._check_steps()
        await self._disable()
        self.figures.seconds = round(time.monotonic() - began, 1)
        return self.figures

    # -- checks ------------------------------------------------------------------------------------------------

    def _lines(self) -> list[tuple[float, str, str, int]]:
        lines = (line.split() for line in self.asked.read_text().splitlines())
        return [(float(at), what, name, int(n)) for at, what, name, n in lines]

    def _check_calls(self) -> None:
        """The next call is asked when the one before is on record. So after it, the one before is not asked again; and none is when
        the caller has the answer."""
        latest: dict[str, int] = defaultdict(int)
        asked: Counter[tuple[str, int]] = Counter()
        for at, what, name, n in self._lines():
            if what == "ask":
                assert at <= self._answered.get(name, at), (
                    f"{name} was answered, and call {n} was asked again"
                )
                assert n >= latest[name], f"call {n} of {name} is on record, and was asked again"
                latest[name] = n
                asked[name, n] += 1
        self.figures.asked, self.figures.asked_again = asked.total(), asked.total() - len(asked)
        lost = self.figures.disruptions.get("kill", 0) + self.figures.disruptions.get("pause", 0)
        lost += self.figures.disruptions.get("database", 0)
        assert max(asked.values()) <= 1 + lost, asked.most_common(3)

    def _check_limit(self) -> None:
        running: set[str] = set()
        for _, what, name, _ in self._lines():
            if name.startswith("crowd"):
                (running.discard if what in ("end", "cut") else running.add)(name)
                self.figures.most_at_once = max(self.figures.most_at_once, len(running))
        assert self.figures.most_at_once <= LIMIT, f"{self.figures.most_at_once} ran at once"

    async def _check_talk(self, token: str, talk: int, sent: list[str]) -> None:
        wanted = [
            word
            for text in sent
            for word in (("user", text), ("assistant", f"Answer {text[:-2].split()[1]}"))
        ]
        got: list[tuple[str, str]] = []
        after = 0
        while True:
            path = f"/v1/conversations/{talk}/messages?after_id={after}"
            page = (await self.call(token, "GET", path))["messages"]
            if not page:
                break
            got += [(each["role"], each["content"].strip().rpartition("\n")[2]) for each in page]
            after = page[-1]["id"]
        assert got == wanted, (
            talk,
            [pair for pair in zip(got, wanted, strict=False) if pair[0] != pair[1]][:3],
        )
        self.figures.messages += len(got)

    def _check_ran(self, tenant: int, names: list[str]) -> None:
        ran = Counter((self.folder / "workspaces" / f"t{tenant}" / "done").read_text().split())
        for name in names:
            assert ran[name] <= 1, f"the command of {name} ran {ran[name]} times"
            refused = any(each["tool"].startswith("exec") and not each["ok"] for each in self.told[name])
            assert ran[name] == 1 or self.commands[name] or refused, (
                f"the command of {name} did not run: {self.told[name]}"
            )
            self.figures.interrupted += bool(self.commands[name])
        self.figures.commands += sum(ran.values())

    async def _check_commands(self, tenant: int, token: str) -> None:
        mine = [
            text[:-2].split()[1] for (whose, _), sent in self._sent.items() if whose == token for text in sent
        ]
        self._check_ran(tenant, mine)
        (notes,) = await self._sql(f"select content from hub.scratchpads where tenant_id = {tenant}")
        written = Counter(line.split()[-1] for line in notes[0][0].splitlines())
        assert written == Counter(mine), (written - Counter(mine), Counter(mine) - written)

    async def _check_budget(self, tenant: int, token: str) -> None:
        """When the budget is used up, no call begins but one of each caller whose check was before. (A call that was interrupted
        counts with an estimate, so the sum says little.)"""
        spent, alerts = await self._sql(
            f"select tokens from hub.spending where tenant_id = {tenant}",
            f"select at from hub.budget_alerts where tenant_id = {tenant} and percent = 100",
        )
        self.figures.spent, ((used_up_at,),) = sum(row[0] for row in spent), alerts
        calls = [(at, what) for at, what, name, _ in self._lines() if name.startswith("spends")]
        late = sum(what == "ask" and at > used_up_at + 1 for at, what in calls)
        assert late <= SPENDERS, f"{late} calls began after the budget was used up"
        ended = sum(what == "end" for _, what in calls)
        self.figures.not_counted = max(0, ended - self.figures.spent // CALL_TOKENS)
        assert self.figures.not_counted <= SPENDERS * self.figures.disruptions.get("kill", 0), self.figures
        for node in range(len(self.nodes)):
            try:
                await self.stream(token, "/v1/orchestrate", "<<hold late>>", node=node)
            except UsedUp:
                continue
            raise AssertionError(f"hub {node} does not know that the budget is used up")

    async def _check_files(self, tenant: int, token: str) -> None:
        for id, digest in self._files.items():
            content = await self._bytes(token, "GET", f"/v1/artifacts/{id}/raw")
            assert sha256(content).digest() == digest, f"file {id} is not as it was sent"
        self.figures.files = len(self._files)
        stored = {path.name.lstrip(".") for path in (self.folder / "blobs" / f"t{tenant}").iterdir()}
        known = await self._sql(
            "select blob from hub.artifacts where blob <> ''", "select key from hub.unused_blobs"
        )
        unknown = stored - {key.rpartition("/")[2] for rows in known for (key,) in rows}
        assert not unknown, f"contents that nobody knows: {unknown}"

    async def _check_messages(self, tenant: int) -> None:
        """Each message over A2A has begun one task."""
        (tasks,) = await self._sql(
            f"select id from dragoman.tasks join dragoman.scopes using (scope) where tenant = '{tenant}'"
        )
        assert sorted(id for (id,) in tasks) == sorted(self._messages), (len(tasks), len(self._messages))
        self.figures.sent = len(self._messages)

    async def _check_schedules(self, token: str, n: int) -> None:
        async def look() -> Any:
            return (await self.call(token, "GET", "/v1/runs"))["runs"]

        def ended(runs: Any) -> bool:
            return len(runs) >= n and all(run["status"] == "succeeded" for run in runs)

        runs = await until(look, ended, seconds=60)
        assert len(runs) == len({run["request_id"] for run in runs}) == n, runs
        assert len((await self.call(token, "GET", "/v1/requests"))["requests"]) == n
        self.figures.schedules = n

    async def _check_steps(self) -> None:
        (fences,) = await self._sql("select sum(fence - 1) from dragoman.tasks")
        self.figures.taken_over = int(fences[0][0])

    async def _disable(self) -> None:
        """Disable a tenant of which a request runs at every hub, and another one while a hub stands still."""
        await self._disable_tenant("doomed")
        await self._disable_tenant("paused", paused=2)

    async def _disable_tenant(self, tenant: str, *, paused: int | None = None) -> None:
        id, token = await self.tenant(tenant)
        live = [
            asyncio.create_task(self.stream(token, "/v1/orchestrate", f"<<last {tenant}-{n}>>", node=n))
            for n in range(3)
        ]
        try:
            names = [f"{tenant}-{n}" for n in range(3)]
            await until(lambda: {*names} <= {name for _, what, name, _ in self._lines() if what == "word"})
            if paused is not None:
                self.nodes[paused].signal(signal.SIGSTOP)
            at = [time.time()] * 3
            await self.call(ADMIN, "PATCH", f"/v1/admin/tenants/{id}", {"disabled": True}, node=0)
            for n, each in enumerate(live):
                if n == paused:
                    await elapse(1.0)
                    at[n] = time.time()
                    self.nodes[n].signal(signal.SIGCONT)
                told = (await asyncio.gather(each, return_exceptions=True))[0]
                assert isinstance(told, list) and not told[-1][1]["ok"], told
        finally:
            for task in live:
                task.cancel()
        for when, what, name, _ in self._lines():
            if what == "word" and name in names:
                after = round(when - at[names.index(name)], 3)
                self.figures.stopped_after = max(self.figures.stopped_after, after)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="about how long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--talks", type=int, default=12, help="conversations at the same time")
    parser.add_argument(
        "--away", type=float, default=1.0, help="seconds for which the database is away at most"
    )
    parser.add_argument("--logs", type=Path, help="a folder for what the hubs log")
    args = parser.parse_args()
    disruptions = [KINDS[n % len(KINDS)] for n in range(max(4, int(args.seconds / 4)))]
    random.Random(args.seed).shuffle(disruptions)
    if args.logs:
        args.logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        async with Hubs(Path(folder), postgres.server(), args.seed, away=args.away) as hubs:
            try:
                figures = await hubs.run(disruptions, talks=args.talks, pause=(0.5, 2.5))
            finally:
                for n, node in enumerate(hubs.nodes if args.logs else ()):
                    (args.logs / f"hub-{n}.log").write_bytes(node.said)
                if args.logs:
                    shutil.copy(hubs.asked, args.logs)
            broken = [line for node in hubs.nodes for line in node.said.splitlines() if b"Traceback" in line]
    print(msgspec.json.format(msgspec.json.encode(figures)).decode())
    print(f"tracebacks in the logs of the hubs: {len(broken)}")
    return 1 if broken or figures.stopped_after > 2.0 else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
