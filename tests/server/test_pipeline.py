"""What all bindings share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import dragoman
from dragoman.model.content import Artifact, Part
from dragoman.server import openapi
from dragoman.server.pipeline import collect
from tests.server.wire import Scripted, app_of, open_request, open_rpc, request, task

SOURCE = Path(dragoman.__file__).parent
NAME_COMPARED = re.compile(r"dialect(?:\(\))?\.name\s*(?:==|!=|in\b|not in\b)")


@pytest.mark.parametrize("package", ["server", "client"])
def test_bindings_ask_a_dialect_for_its_facts_and_not_for_its_name(package: str) -> None:
    files = list((SOURCE / package).rglob("*.py"))
    assert files and NAME_COMPARED.search('dialect.name == "1.0"')
    assert [file.name for file in files if NAME_COMPARED.search(file.read_text())] == []


async def test_openapi_document_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = openapi.document

    def count(card: object, url: str, versions: object, methods: object) -> openapi.Document:
        built.append(url)
        return build(card, url, versions)  # type: ignore[arg-type]

    monkeypatch.setattr(openapi, "document", count)
    app = app_of()
    for path in ("/openapi.json", "/openapi.json", "/docs"):
        assert (await request(app, "GET", path)).status == 200
    assert len(built) == 1


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_other_work_is_done_while_a_large_task_is_written(binding: str) -> None:
    parts = tuple(Part(text="x" * 600_000) for _ in range(45))
    service = Scripted(result=replace(task(), artifacts=(Artifact(artifact_id="a", parts=parts),)))
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    headers = {"A2A-Version": "1.0"}
    if binding == "JSONRPC":
        answer = open_rpc(app_of(service), "GetTask", {"id": "t1"}, headers=headers)
    else:
        answer = open_request(app_of(service), "GET", "/tasks/t1", headers=headers)
    await answer.until(lambda: bool(answer.status))
    assert turns >= len(parts)
    working.cancel()
    await answer.end()
    result = answer.json["result"] if binding == "JSONRPC" else answer.json
    assert [len(part["text"]) for part in result["artifacts"][0]["parts"]] == [600_000] * 45
    assert int(answer.headers["content-length"]) == len(answer.body)


async def test_head_of_a_large_task_has_no_body() -> None:
    part = Part(text="x" * 26_000_000)
    service = Scripted(result=replace(task(), artifacts=(Artifact(artifact_id="a", parts=(part,)),)))
    answer = await request(app_of(service), "HEAD", "/tasks/t1", headers={"A2A-Version": "1.0"})
    assert answer.status == 200 and answer.body == b""
    assert int(answer.headers["content-length"]) > 26_000_000


async def test_large_answers_are_written_one_after_another() -> None:
    """Otherwise all of them are in memory while the first is written."""
    order, lock = list[bytes](), asyncio.Lock()

    def pieces(name: bytes) -> Iterator[bytes]:
        for _ in range(3):
            order.append(name)
            yield name

    written = await asyncio.gather(*(collect(pieces(name), lock) for name in (b"a", b"b")))
    assert written == [[b"a"] * 3, [b"b"] * 3]
    assert order == [b"a"] * 3 + [b"b"] * 3
