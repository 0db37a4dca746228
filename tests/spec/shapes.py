"""Has a document the shape of an example?"""

from __future__ import annotations

from typing import Any

SAME = {"type": "kind", "data": "bytes"}
"""Members that examples spell in two ways."""

ADDED = {"kind", "messageId", "role", "contextId", "index", "append", "lastChunk", "final"}
"""Members that a version requires and its examples forget."""


def shape_errors(written: Any, example: Any, path: str = "$") -> list[str]:
    """How `written` departs from `example`: other members, kinds or values. Members the example leaves empty may be
    missing, members that the version wants may be added, moments may be spelled differently."""
    if isinstance(example, dict):
        return _object_errors(written, example, path)
    if isinstance(example, list):
        if not isinstance(written, list) or len(written) != len(example):
            return [f"{path}: {written!r} is not a list of {len(example)}"]
        return [
            error
            for n, (a, b) in enumerate(zip(written, example, strict=True))
            for error in shape_errors(a, b, f"{path}[{n}]")
        ]
    if path.endswith(".timestamp"):
        return [] if isinstance(written, str) and written[:19] == example[:19] else [f"{path}: {written!r}"]
    if path.endswith(".id"):
        return [] if written == str(example) else [f"{path}: {written!r} is not {example!r}"]
    return (
        []
        if type(written) is type(example) and written == example
        else [f"{path}: {written!r} is not {example!r}"]
    )


def _object_errors(written: Any, example: dict[str, Any], path: str) -> list[str]:
    if not isinstance(written, dict):
        return [f"{path}: {written!r} is not an object"]
    if path.endswith(("metadata", ".data")):
        return [] if written == example else [f"{path}: {written!r} is not {example!r}"]
    errors = []
    ours, theirs = _spelled(written, path), _spelled(example, path)
    for name, value in theirs.items():
        if name not in ours:
            if value not in ({}, [], None):
                errors.append(f"{path}.{name}: is missing")
        else:
            errors += shape_errors(ours[name], value, f"{path}.{name}")
    return errors + [f"{path}.{name}: is not in the example" for name in ours.keys() - theirs.keys() - ADDED]


def _spelled(document: dict[str, Any], path: str) -> dict[str, Any]:
    same = SAME if path.endswith(".file") else {"type": "kind"}
    return {same.get(name, name): value for name, value in document.items()}
