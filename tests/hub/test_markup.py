"""What a page says, and how little it takes to find out."""

from __future__ import annotations

import pytest

from dragoman.hub.markup import html_text


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
        ("<ul><li>a<li>b</ul>", "a\nb"),
        ("<header>top</header>", "top"),
        ("", ""),
    ],
)
def test_a_page_is_told_without_its_markup(source: str, text: str) -> None:
    assert html_text(source) == text


@pytest.mark.parametrize(
    "unit",
    [
        "<",
        "<!",
        "<!--",
        "<![CDATA[",
        "<?",
        "<a ",
        "<a x=",
        "<a b='",
        "</a",
        "&#",
        "&",
        "<svg>",
        "<head>",
        "<p>",
        "</",
    ],
    ids=ascii,
)
def test_a_page_that_is_made_to_keep_its_reader_busy_does_not(unit: str) -> None:
    html_text(unit * 100_000)
    html_text(unit * 100_000 + ">" * 100_000)
