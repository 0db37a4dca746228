"""The text of a page. `test_linear_time.py` measures what it costs to find it."""

from __future__ import annotations

import pytest

from dragoman.hub.tools.fetcher import MAX_HTML_CHARACTERS, html_text, page_text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<p>One</p><p>Two &amp; &#8364;</p>", "One\n\nTwo & €"),
        ("<html><head><title>T</title></head><body>Hi <b>you</b></body>", "Hi you"),
        ("<html><head><title>T</title><body class=x>The head is not closed", "The head is not closed"),
        ("<script>if (a < b) { '<p>' }</script>after<style>p > a {}</style>", "after"),
        ("<SCRIPT>x</SCRIPT >after", "after"),
        ("a<svg/>b<br/>c<svg><text>no</text></svg>d", "ab\ncd"),
        ("before<!-- <p>no</p> -->after", "beforeafter"),
        ("<!DOCTYPE html><?xml version='1.0'?>text", "text"),
        ("1 < 2, a<3 and <3", "1 < 2, a<3 and <3"),
        ("text <a href='x", "text"),
        ("<noscript>seen, for it never ends", "seen, for it never ends"),
        ("<ul><li>a<li>b</ul>c&nbsp;d", "a\nb\nc d"),
        ("<header>top</header>", "top"),
        ("", ""),
    ],
)
def test_the_text_of_a_page_has_no_markup(source: str, text: str) -> None:
    assert html_text(source) == text


@pytest.mark.parametrize(
    "reference", ["&#" + "9" * 5000, "&#x" + "f" * 5000 + ";", "&#" + "0" * 5000 + "65;"]
)
def test_a_reference_to_no_character_does_not_break_the_page(reference: str) -> None:
    assert html_text(f"before {reference} after") == "before \ufffd after"


def test_references_are_whole_wherever_a_page_is_divided() -> None:
    source = "&eacute;" * 20_000 + "x" * 40_000 + "&CounterClockwiseContourIntegral;" * 5_000
    assert html_text(source) == "é" * 20_000 + "x" * 40_000 + "∳" * 5_000


@pytest.mark.parametrize(
    ("label", "body", "text"),
    [
        ("ISO-8859-1", b"caf\xe9 \x80", "café €"),
        ('"Shift_JIS"', "日本".encode("shift_jis"), "日本"),
        ("gb2312", "中文".encode("gb18030"), "中文"),
        ("utf-16", "\ufeffhé".encode("utf-16-le"), "hé"),
        ("utf-16le", "hé".encode("utf-16-le"), "hé"),
        ("windows-1251", "да".encode("cp1251"), "да"),
        ("nonsense", "é".encode(), "é"),
        ("utf-8", b"\xef\xbb\xbfok \xff", "ok \ufffd"),
    ],
)
def test_a_page_is_read_in_the_encoding_that_it_names(label: str, body: bytes, text: str) -> None:
    assert page_text(body, "text/html", f" charset={label}") == text
    assert page_text(body, "text/plain", f" Charset={label}") == text


def test_a_character_is_whole_wherever_a_page_is_divided() -> None:
    text = "x" + "日本é" * 50_000
    assert page_text(text.encode(), "text/plain", "") == text


def test_only_the_first_megabytes_of_a_page_are_looked_at() -> None:
    assert len(page_text(b"word " * MAX_HTML_CHARACTERS, "text/html")) <= MAX_HTML_CHARACTERS
