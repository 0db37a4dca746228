"""An OpenAPI document as a page for people: plain HTML, no script, nothing fetched from anywhere."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from html import escape
from typing import Any

from dragoman.server.openapi import EVENTS, Document

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 0.875em/1.5 ui-monospace, monospace; }
h1 { margin-bottom: 0; }
h2 { margin-top: 3rem; border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
details { margin: 0.75rem 0; }
summary { cursor: pointer; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0; }
th { font-weight: 600; }
.verb { display: inline-block; min-width: 4.5rem; font-weight: 600; }
.quiet { opacity: 0.7; }
.inside { margin: 0.5rem 0 1.5rem 1.25rem; }
"""

_DIGEST = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CSP = f"default-src 'none'; base-uri 'none'; frame-ancestors 'none'; style-src 'sha256-{_DIGEST}'"
"""Allows the page's own style and nothing else."""


def page(document: Document) -> str:
    info, base = document["info"], document["servers"][0]["url"]
    groups: dict[str, list[str]] = {}
    for path, place in document["paths"].items():
        for verb, operation in place.items():
            if verb != "parameters":
                section = _operation(document, path, verb, operation, place["parameters"])
                groups.setdefault(operation["tags"][0], []).append(section)
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(items)}" for tag, items in groups.items())
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])}</h1><p>{_words(info.get('description', ''))}</p>"
        f"<p>HTTP+JSON at <code>{escape(base)}</code>. "
        f'For machines: <a href="openapi.json">openapi.json</a>.</p>'
        f"{sections}<h2>Documents</h2>{schemas}</body></html>"
    )


def _operation(document: Document, path: str, verb: str, operation: Document, shared: list[Document]) -> str:
    rows = [
        _row(each["name"], each["in"], _kind(each["schema"]), each.get("description", ""))
        for each in (_resolve(document, one) for one in [*shared, *operation["parameters"]])
    ]
    if "requestBody" in operation:
        rows.append(_row("", "body", _content(operation["requestBody"]), ""))
    rows.append(_row("", "answer", _content(operation["responses"]["200"]), ""))
    return (
        f'<details id="{escape(operation["operationId"])}"><summary><span class="verb">{verb.upper()}</span>'
        f'<code>{escape(path)}</code> <span class="quiet">{escape(operation["summary"])}</span></summary>'
        f'<div class="inside"><p>{_words(operation.get("description", ""))}</p>'
        f"<table>{''.join(rows)}</table></div></details>"
    )


def _schema(name: str, schema: Document) -> str:
    required = schema.get("required", ())
    rows = [
        _row(member, "required" if member in required else "", _kind(each), each.get("description", ""))
        for member, each in schema.get("properties", {}).items()
    ]
    values = ", ".join(f"<code>{escape(str(value))}</code>" for value in schema.get("enum", ()))
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><div class="inside">'
        f"<p>{_words(schema.get('description', ''))}{values}</p><table>{''.join(rows)}</table></div></details>"
    )


def _row(name: str, place: str, kind: str, description: str) -> str:
    label = f"<code>{escape(name)}</code>" if name else ""
    return (
        f'<tr><th>{label}</th><td class="quiet">{escape(place)}</td>'
        f"<td>{kind}</td><td>{_words(description)}</td></tr>"
    )


def _content(holder: Document) -> str:
    """The schema of a body or a response: all its media types have the same."""
    kind, content = next(iter(holder["content"].items()))
    if kind == EVENTS:
        return f"{kind} of {_kind(content['schema']['properties']['data']['contentSchema'])}"
    return _kind(content["schema"])


def _kind(schema: Any) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if "enum" in schema:
        return " | ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    return escape(schema.get("format") or schema.get("contentEncoding") or schema.get("type", "anything"))


def _resolve(document: Document, parameter: Document) -> Document:
    if "$ref" not in parameter:
        return parameter
    found: Document = document["components"]["parameters"][parameter["$ref"].rpartition("/")[2]]
    return found


def _words(text: str) -> str:
    """Text in which `this` is code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if n % 2 else piece for n, piece in enumerate(pieces))
