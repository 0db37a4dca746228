"""What a store promises operators: tasks of every scope, their rows, nodes, webhooks, and the topics of a bus."""

from __future__ import annotations

import time

import pytest

from dragoman.engine import protocols
from dragoman.engine.protocols import HEAD_BYTES, Bus, Lease, Log, Store, TaskQuery
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import read_topic, topic, unpack
from dragoman.errors import TaskNotFound
from dragoman.model.ops import ListTasks, PushConfig, Scope
from dragoman.model.task import TaskState
from tests.conformance.conftest import SCOPE
from tests.conformance.records import chunk, mail, reply, status, turn
from tests.waiting import until

OTHER = Scope("beta", "echo", "bob")
THIRD = Scope("acme", "sum", "")


def at(n: int) -> str:
    return f"2026-11-16T10:00:{n:02d}.000Z"


async def settle(log: Log, task: str, state: TaskState, when: int) -> None:
    lease = (await log.create(task, "c", mail(at=at(when)), node="n1")).lease
    assert lease is not None
    await log.settle(lease, [turn(), status(state, at=at(when))], mail=1)


async def names(store: Store, **query: object) -> list[str]:
    found = await store.index.find(TaskQuery(**query), limit=100)  # type: ignore[arg-type]
    assert found.next is None
    return [info.id for info in found.tasks]


async def fill(store: Store) -> None:
    await settle(store.scope(SCOPE), "a", TaskState.COMPLETED, 1)
    await settle(store.scope(OTHER), "b", TaskState.FAILED, 2)
    await store.scope(THIRD).create("c", "ctx", mail(at=at(3)))
    await settle(store.scope(OTHER), "d", TaskState.INPUT_REQUIRED, 4)
    await settle(store.scope(SCOPE), "e", TaskState.COMPLETED, 4)


async def test_tasks_of_all_scopes_are_found_newest_first(store: Store) -> None:
    await fill(store)
    assert await names(store) == ["e", "d", "c", "b", "a"]


async def test_filters_are_combined(store: Store) -> None:
    await fill(store)
    assert await names(store, tenant="acme") == ["e", "c", "a"]
    assert await names(store, tenant="") == []
    assert await names(store, tenant="acme", agent="echo") == ["e", "a"]
    assert await names(store, owner="bob") == ["d", "b"]
    assert await names(store, owner="") == ["c"]
    assert await names(store, context="ctx") == ["c"]
    assert await names(store, states=frozenset({TaskState.FAILED, TaskState.INPUT_REQUIRED})) == ["d", "b"]
    assert await names(store, since=at(2), until=at(4)) == ["c", "b"]


async def test_pages_repeat_and_miss_nothing_among_ties(store: Store) -> None:
    log = store.scope(SCOPE)
    for n in range(25):
        await settle(log, f"t{n:02d}", TaskState.COMPLETED, n // 10)
        await log.create(f"u{n:02d}", "c", mail(at=at(n // 10)))
    whole = await names(store)
    assert len(whole) == 50
    seen: list[str] = []
    before = None
    while True:
        found = await store.index.find(TaskQuery(before=before), limit=7)
        seen += [info.id for info in found.tasks]
        if found.next is None:
            break
        before = found.next
    assert seen == whole


async def test_one_search_looks_at_a_limited_number_of_tasks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory", "pages"):
        monkeypatch.setattr(f"dragoman.stores.{module}.SCAN_TASKS", 5)
    for module in ("pages", "sqlite.index", "postgres.index"):
        monkeypatch.setattr(f"dragoman.stores.{module}.SCAN_BATCH_TASKS", 5)
    assert protocols.SCAN_TASKS > 5
    await settle(store.scope(OTHER), "old", TaskState.COMPLETED, 1)
    for n in range(12):
        await settle(store.scope(SCOPE), f"t{n}", TaskState.COMPLETED, 10 + n)
    pages, before = 0, None
    found: list[str] = []
    while True:
        page = await store.index.find(TaskQuery(owner="bob", before=before), limit=10)
        found += [info.id for info in page.tasks]
        pages += 1
        if page.next is None:
            break
        before = page.next
    assert found == ["old"] and pages == 3


async def test_pages_of_a_tenant_repeat_and_miss_nothing_among_ties(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pages", "sqlite.index", "postgres.index"):
        monkeypatch.setattr(f"dragoman.stores.{module}.SCAN_BATCH_TASKS", 4)
    for n in range(24):
        scope = (SCOPE, THIRD, OTHER)[n % 3]
        state = (TaskState.COMPLETED, TaskState.FAILED)[n % 2]
        await settle(store.scope(scope), f"t{n:02d}", state, n // 8)
    whole = {
        info.id
        for info in (await store.index.find(TaskQuery(), limit=100)).tasks
        if info.scope.tenant == "acme"
    }
    for states in (frozenset[TaskState](), frozenset({TaskState.FAILED})):
        seen: list[tuple[str, int, str]] = []
        before = None
        while True:
            page = await store.index.find(TaskQuery(tenant="acme", states=states, before=before), limit=3)
            seen += [(info.updated, info.key, info.id) for info in page.tasks]
            if page.next is None:
                break
            before = page.next
        assert seen == sorted(seen, reverse=True)
        wanted = {id for id in whole if not states or int(id[1:]) % 2}
        assert sorted(id for _, _, id in seen) == sorted(wanted)


async def test_a_list_does_not_change_when_a_record_was_written(store: Store, log: Log) -> None:
    await log.create("t", "ctx", mail("hello"))
    before = (await store.index.get(SCOPE, "t")).head
    now = time.time_ns() // 1_000_000
    await until(lambda: time.time_ns() // 1_000_000 > now)
    assert (await store.index.get(SCOPE, "t")).head == before
    (record,) = await log.read("t")
    assert record.at <= now


async def test_a_row_says_who_runs_a_task_and_how_its_log_begins(store: Store, log: Log) -> None:
    sent = mail("hello", at=at(1))
    await log.create("t", "ctx", sent, node="n1")
    info = await store.index.get(SCOPE, "t")
    assert (info.scope, info.id, info.context, info.seq) == (SCOPE, "t", "ctx", 1)
    assert (info.state, info.done, info.ready) == (TaskState.SUBMITTED, False, True)
    assert (info.attempt, info.fence) == (1, 1)
    assert info.node == "n1" and 30 < info.expires - time.time() <= 61
    assert unpack(info.head, 1)[0].body == sent
    await store.leave("n1")
    info = await store.index.get(SCOPE, "t")
    assert (info.node, info.expires) == ("", 0.0)
    (listed,) = (await store.index.find(TaskQuery(), limit=1)).tasks
    assert listed == info
    await store.claim("n2", limit=1)
    info = await store.index.get(SCOPE, "t")
    assert (info.attempt, info.fence, info.node) == (2, 2, "n2")


async def test_the_head_of_a_long_log_is_short(store: Store, log: Log) -> None:
    await log.create("t", "c", mail("x" * 100_000))
    assert len((await store.index.get(SCOPE, "t")).head) == HEAD_BYTES


async def test_a_bare_message_is_hidden_and_done(store: Store, log: Log) -> None:
    lease = (await log.create("t", "c", mail(reply=True), node="n1")).lease
    assert lease is not None
    await log.settle(lease, [turn(), reply()], mail=1)
    info = await store.index.get(SCOPE, "t")
    assert info.hidden and info.done
    assert await names(store) == ["t"]
    assert await names(store, tenant="acme") == [], "a tenant sees what its peers see"


async def test_a_task_that_is_not_there_is_not_found(store: Store) -> None:
    for scope, task in ((SCOPE, "x"), (Scope("nobody"), "x"), (Scope("a\0b"), "x")):
        with pytest.raises(TaskNotFound):
            await store.index.get(scope, task)


async def test_counts_are_by_tenant_agent_and_state(store: Store) -> None:
    await fill(store)
    assert sorted(await store.index.counts()) == [
        ("acme", "echo", TaskState.COMPLETED, 2),
        ("acme", "sum", TaskState.SUBMITTED, 1),
        ("beta", "echo", TaskState.FAILED, 1),
        ("beta", "echo", TaskState.INPUT_REQUIRED, 1),
    ]


async def test_the_size_of_a_tenant_is_that_of_its_logs(store: Store) -> None:
    await fill(store)
    infos = (await store.index.find(TaskQuery(), limit=100)).tasks
    sizes = {each: sum(info.size for info in infos if info.scope.tenant == each) for each in ("acme", "beta")}
    assert {each: await store.index.size(each) for each in sizes} == sizes and all(sizes.values())
    assert await store.index.size("nobody") == 0


async def test_push_configs_count_as_bytes_of_their_tenant(store: Store) -> None:
    await fill(store)
    before = {each: await store.index.size(each) for each in ("acme", "beta")}
    task = (await store.index.find(TaskQuery(tenant="acme"), limit=1)).tasks[0]
    config = PushConfig(id="c", task_id=task.id, url="https://example.com/", token="x" * 1000)
    await store.push_configs.put(task.scope, task.id, StoredPushConfig(config=config, uid="u"))
    assert await store.index.size("acme") > before["acme"] + 1000
    assert await store.index.size("beta") == before["beta"]
    await store.push_configs.delete(task.scope, task.id, "c")
    assert await store.index.size("acme") == before["acme"]


async def test_nodes_have_their_leases(store: Store, log: Log) -> None:
    await log.create("t", "c", mail(), node="n1")
    nodes = {node.id: node for node in await store.index.nodes()}
    assert {id: node.leases for id, node in nodes.items()} == {"n1": 1, "n2": 0}
    assert all(30 < node.expires - time.time() <= 61 for node in nodes.values())


async def test_records_have_the_time_of_writing(store: Store, log: Log) -> None:
    began = time.time_ns() // 1_000_000
    lease: Lease | None = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    await log.append(lease, [turn(), chunk()])
    records = await log.read("t")
    assert all(began <= record.at <= time.time_ns() // 1_000_000 for record in records)
    assert len(records) == 3


async def test_webhooks_are_browsed_by_key_or_by_task(store: Store, log: Log) -> None:
    def webhook(id: str) -> StoredPushConfig:
        return StoredPushConfig(config=PushConfig(id=id, url="https://example.com/x"), uid=id)

    await log.create("t", "c", mail(), webhook=webhook("a"))
    await store.push_configs.put(SCOPE, "t", webhook("b"))
    await store.scope(OTHER).create("u", "c", mail(), webhook=webhook("c"))
    everything = await store.push_queue.browse(limit=10)
    assert [each.webhook.config.id for each in everything] == ["a", "b", "c"]
    assert [each.scope for each in everything] == [SCOPE, SCOPE, OTHER]
    rest = await store.push_queue.browse(after=everything[0].key, limit=1)
    assert [each.webhook.config.id for each in rest] == ["b"]
    of_task = await store.push_queue.browse(of=(SCOPE, "t"), limit=10)
    assert [each.webhook.config.id for each in of_task] == ["a", "b"]
    with pytest.raises(TaskNotFound):
        await store.push_queue.browse(of=(OTHER, "t"), limit=10)


# The bus


async def test_a_listener_of_all_topics_hears_each_of_them(bus: Bus) -> None:
    heard: list[str] = []
    with bus.listen_all(heard.append):
        bus.wake(topic(SCOPE, "t"))
        bus.wake("mail")
    bus.wake(topic(SCOPE, "later"))
    assert heard == [topic(SCOPE, "t"), "mail"]


async def test_a_listener_of_all_topics_hears_other_processes(buses: tuple[Bus, Bus]) -> None:
    here, there = buses
    heard: list[str] = []
    with there.listen_all(heard.append):

        def wake() -> list[str]:
            here.wake(topic(SCOPE, "t"))
            return heard

        await until(wake)
    assert read_topic(heard[0]) == (SCOPE, "t")


@pytest.mark.parametrize("scope", [SCOPE, Scope(), Scope("a/b", "%2F", "c%25/")])
def test_a_topic_can_be_read_again(scope: Scope) -> None:
    assert read_topic(topic(scope, "x/%y")) == (scope, "x/%y")
    assert read_topic("mail") is None and read_topic("#abc") is None


async def test_an_answer_to_a_question_does_not_hide_a_task_that_could_have_been_a_message(
    store: Store,
) -> None:
    log = store.scope(SCOPE)
    lease = (await log.create("t", "c", mail(reply=True), node="n1")).lease
    assert lease is not None
    await log.settle(lease, [turn(), status(TaskState.INPUT_REQUIRED, kind="ask")], mail=1)
    delivered = await log.deliver("t", mail("Rome"))
    assert not delivered.snapshot.hidden
    assert not (await log.head("t")).hidden
    assert [each.task_id for each in (await log.find(ListTasks(), limit=10)).snapshots] == ["t"]
    assert await log.count_unfinished() == 1
