"""Holds answers of the native API to its OpenAPI document. Every `Caller` of the suite does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator

from dragoman.hub.api.about import document
from dragoman.server.routes import Route, Table
from tests.server.wire import Answer

MAX_CHECKED_BYTES = 150_000
"""Larger answers take too long to check."""
_OTHERS = ("/v1/a2a", "/v1/metrics")
"""Paths whose errors have other shapes."""

_documents: dict[int, dict[str, Any]] = {}
_validators: dict[tuple[str, int], Any] = {}
checked: set[str] = set()
"""The operations whose answers were checked."""


def described(table: Table) -> dict[str, Any]:
    found = _documents.get(len(table.routes))
    if found is None:
        found = _documents[len(table.routes)] = document(table)
    return found


def check(app: Any, method: str, path: str, answer: Answer) -> None:
    """Fails if the answer is not as the document says."""
    table = getattr(getattr(app, "_elsewhere", None), "table", None)
    if (
        table is None
        or not path.startswith("/v1/")
        or path.startswith(_OTHERS)
        or method in ("HEAD", "OPTIONS")
    ):
        return
    kind = answer.headers.get("content-type", "")
    if len(answer.body) > MAX_CHECKED_BYTES or kind.startswith("text/event-stream"):
        return
    found = table.find(path)
    route: Route | None = found[0].get(method) if found is not None else None
    if answer.status >= 400:
        assert kind.startswith("application/json"), f"{method} {path}: an error is not JSON but {kind}"
        _hold(described(table), ("Error", 0), {"$ref": "#/components/schemas/Error"}, answer.json)
        return
    if route is None:
        return
    operation = described(table)["paths"][route.path][method.lower()]
    assert str(answer.status) in operation["responses"], f"{method} {route.path} does not say {answer.status}"
    content = operation["responses"][str(answer.status)].get("content", {})
    if "application/json" in content:
        schema = content["application/json"]["schema"]
        _hold(described(table), (f"{method} {route.path}", answer.status), schema, answer.json)
    elif not content:
        assert answer.body == b""
    checked.add(f"{method} {route.path}")


def _hold(whole: dict[str, Any], key: tuple[str, int], schema: Any, value: Any) -> None:
    validator = _validators.get(key)
    if validator is None:
        validator = _validators[key] = Draft202012Validator({**schema, "components": whole["components"]})
    wrong: Sequence[Any] = sorted(validator.iter_errors(value), key=str)
    assert not wrong, f"{key[0]}: {wrong[0].message} at {list(wrong[0].absolute_path)}"
