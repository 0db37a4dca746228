"""The catalogue of every store: registered agents, and the search for agents."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.engine.protocols import RegisteredAgent, SearchText, Store
from dragoman.stores.search_words import MAX_SEARCH_WORDS

REFUNDS = SearchText(
    name="Refund desk",
    tags="payments orders",
    skills="Refund an order: sends money back",
    about="Returns money to customers within two days.",
)
WEATHER = SearchText(
    name="Weather", tags="forecast", skills="Forecast", about="Knows when it rains, and in which order."
)
SHOP = SearchText(
    name="Shop", tags="orders", skills="placeOrder trackOrders", about="Sells things. No refunds."
)
TEXTS = {"r": REFUNDS, "w": WEATHER, "s": SHOP}
ALL = tuple(TEXTS)


async def search(store: Store, query: str, among: tuple[str, ...] = ALL, limit: int = 10) -> list[str]:
    return [digest for digest, _ in await store.catalogue.search(query, among, limit=limit)]


@pytest.fixture
async def searched(store: Store) -> Store:
    await store.catalogue.put_texts(TEXTS, 100.0)
    return store


async def test_the_agent_whose_name_and_skills_have_the_words_comes_first(searched: Store) -> None:
    assert await search(searched, "refund an order") == ["r", "s", "w"]


async def test_scores_are_the_same_in_every_store(searched: Store) -> None:
    found = dict(await searched.catalogue.search("refund an order", ALL, limit=10))
    assert {digest: round(score, 4) for digest, score in found.items()} == {"r": 0.9, "s": 0.65, "w": 0.25}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("forecasts", ["w"]),  # other endings
        ("forecasting", ["w"]),
        ("forec", ["w"]),  # the beginning of a word
        ("PLACE", ["s"]),  # part of a name in camel case, in another case
        ("Wéather", ["w"]),  # accents
        ("zeppelin", []),
        ("zeppelin weather", ["w"]),  # one of the words is enough
        ("the and of", []),  # every text has these
        ("", []),
        ("?!* ()", []),
    ],
)
async def test_words_are_found_by_their_stems_and_beginnings(
    searched: Store, query: str, expected: list[str]
) -> None:
    assert await search(searched, query) == expected


@pytest.mark.parametrize(
    "query",
    [
        'name:refund OR "',
        "refund* NEAR(order) ^ {}",
        "' | & ! <-> :* \\",
        "refund\x00order",
        "\ud800 refund",
        "); drop table catalogue_texts; --",
    ],
)
async def test_the_syntax_of_a_database_is_only_words(searched: Store, query: str) -> None:
    await search(searched, query)
    assert await search(searched, "refund") == ["r", "s"]


async def test_a_query_of_any_length_is_cut(searched: Store) -> None:
    words = " ".join(f"word{n}" for n in range(MAX_SEARCH_WORDS)) + " refund " * 5000
    assert await search(searched, words) == []
    assert await search(searched, "refund " * 50_000) == ["r", "s"]


async def test_only_the_texts_that_are_named_are_searched(searched: Store) -> None:
    assert await search(searched, "refund order", ("s", "w", "unknown")) == ["s", "w"]
    assert await search(searched, "refund order", ()) == []


async def test_the_score_of_a_text_does_not_depend_on_texts_that_are_not_named(searched: Store) -> None:
    before = await searched.catalogue.search("refund order", ("r", "s"), limit=10)
    await searched.catalogue.put_texts({f"x{n}": REFUNDS for n in range(20)}, 100.0)
    assert await searched.catalogue.search("refund order", ("r", "s"), limit=10) == before


async def test_the_best_are_returned_where_more_match_than_are_wanted(searched: Store) -> None:
    assert await search(searched, "refund order", limit=1) == ["r"]


async def test_characters_of_scripts_without_spaces_are_words(store: Store) -> None:
    await store.catalogue.put_texts(
        {"jp": SearchText(name="注文の返金"), "en": SearchText(name="Refunds")}, 1.0
    )
    assert await search(store, "返金", ("jp", "en")) == ["jp"]


async def test_texts_that_nobody_uses_are_forgotten(searched: Store) -> None:
    await searched.catalogue.put_texts({"w": WEATHER}, 200.0)
    assert await searched.catalogue.forget_texts(150.0) == 2
    assert await search(searched, "refund weather") == ["w"]
    await searched.catalogue.put_texts({"r": REFUNDS}, 300.0)
    assert await search(searched, "refund") == ["r"]


async def test_a_text_can_have_any_characters(store: Store) -> None:
    strange = SearchText(name="nul\x00 \ud800half", tags="\u202e", skills='"*:', about="x" * 100_000)
    await store.catalogue.put_texts({"strange": strange}, 1.0)
    assert await search(store, "half", ("strange",)) == ["strange"]


def agent(
    name: str, *, due: float = 0.0, tenant: str = "", url: str = "https://a.example"
) -> RegisteredAgent:
    return RegisteredAgent(tenant=tenant, name=name, url=url, due=due, body=b'{"x":1}')


async def test_registered_agents_are_listed_by_name(store: Store) -> None:
    assert await store.catalogue.register(agent("zoe"), limit=10)
    assert await store.catalogue.register(agent("ann", tenant="acme"), limit=10)
    assert list(await store.catalogue.registered()) == [agent("ann", tenant="acme"), agent("zoe")]


async def test_a_name_is_taken_once_for_each_tenant(store: Store) -> None:
    assert await store.catalogue.register(agent("ann"), limit=10)
    assert not await store.catalogue.register(agent("ann", url="https://b.example"), limit=10)
    assert await store.catalogue.register(agent("ann", tenant="acme"), limit=10)
    assert [each.url for each in await store.catalogue.registered()] == ["https://a.example"] * 2


async def test_only_so_many_agents_are_registered(store: Store) -> None:
    assert [await store.catalogue.register(agent(f"a{n}"), limit=2) for n in range(3)] == [True, True, False]


async def test_an_agent_is_removed_once(store: Store) -> None:
    await store.catalogue.register(agent("ann"), limit=10)
    assert not await store.catalogue.unregister("acme", "ann")
    assert await store.catalogue.unregister("", "ann")
    assert not await store.catalogue.unregister("", "ann")
    assert list(await store.catalogue.registered()) == []


async def test_those_that_wait_longest_are_due_first(store: Store) -> None:
    for name, due in (("c", 30.0), ("a", 10.0), ("b", 20.0), ("later", 99.0)):
        await store.catalogue.register(agent(name, due=due), limit=10)
    taken = await store.catalogue.take_due(50.0, 100.0, limit=2)
    assert [each.name for each in taken] == ["a", "b"]
    assert [each.name for each in await store.catalogue.take_due(50.0, 100.0, limit=9)] == ["c"]
    assert {each.name: each.due for each in await store.catalogue.registered()} == {
        "a": 100.0,
        "b": 100.0,
        "c": 100.0,
        "later": 99.0,
    }


async def test_what_is_learnt_of_an_agent_is_stored_while_it_is_registered(store: Store) -> None:
    await store.catalogue.register(agent("ann"), limit=10)
    learnt = RegisteredAgent(name="ann", url="https://a.example", due=7.0, body=b'{"x":2}')
    assert await store.catalogue.update(learnt)
    assert list(await store.catalogue.registered()) == [learnt]
    assert not await store.catalogue.update(agent("ann", url="https://b.example"))
    await store.catalogue.unregister("", "ann")
    assert not await store.catalogue.update(learnt)
    assert list(await store.catalogue.registered()) == []


async def test_two_processes_never_take_the_same_agent(pair: tuple[Store, Store]) -> None:
    first, second = pair
    for n in range(20):
        await first.catalogue.register(agent(f"a{n:02}"), limit=50)
    taken = await asyncio.gather(
        *(store.catalogue.take_due(1.0, 9.0, limit=3) for store in (first, second) * 4)
    )
    names = [each.name for some in taken for each in some]
    assert len(names) == len(set(names)) == 20


async def test_what_one_process_registers_and_indexes_the_other_finds(pair: tuple[Store, Store]) -> None:
    first, second = pair
    await first.catalogue.register(agent("ann"), limit=10)
    await first.catalogue.put_texts(TEXTS, 1.0)
    await second.catalogue.put_texts(TEXTS, 2.0)
    assert [each.name for each in await second.catalogue.registered()] == ["ann"]
    assert await search(second, "weather") == ["w"]
