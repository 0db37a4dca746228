"""What all bindings share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dragoman
from dragoman.server import openapi
from tests.server.wire import app_of, request

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

    def count(card: object, url: str, versions: object) -> openapi.Document:
        built.append(url)
        return build(card, url, versions)  # type: ignore[arg-type]

    monkeypatch.setattr(openapi, "document", count)
    app = app_of()
    for path in ("/openapi.json", "/openapi.json", "/docs"):
        assert (await request(app, "GET", path)).status == 200
    assert len(built) == 1
