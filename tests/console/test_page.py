"""The files of the console's page: what is in the wheel, what they may not contain, and whether their colours can be read."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dragoman.console

PAGE = Path(dragoman.console.__file__).parent / "page"
ROOT = Path(__file__).parent.parent.parent
SCRIPTS = sorted(PAGE.glob("*.js"))
MAX_COMPRESSED_BYTES = 300_000


def test_the_wheel_has_the_page_and_it_is_small(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        prefix = "dragoman/console/page/"
        files = {
            entry.filename.removeprefix(prefix): entry.compress_size
            for entry in archive.infolist()
            if entry.filename.startswith(prefix)
        }
    assert set(files) == {path.name for path in PAGE.iterdir()}
    assert sum(files.values()) < MAX_COMPRESSED_BYTES


def test_every_module_that_is_imported_is_there() -> None:
    imported = {
        name for script in SCRIPTS for name in re.findall(r'from "\./([\w.]+)"', script.read_text())
    } | set(re.findall(r'(?:src|href)="([\w.]+)"', (PAGE / "index.html").read_text()))
    assert "app.js" in imported
    assert imported <= {path.name for path in PAGE.iterdir()}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_no_script_makes_html_from_text_or_runs_text(script: Path) -> None:
    text = script.read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "new Function",
                 "createContextualFragment", "srcdoc", "setHTML", "javascript:"):  # fmt: skip
        assert word not in text, word
    assert not re.search(r"https?://(?!www\.w3\.org/)[a-z]", re.sub(r'placeholder: "[^"]*"', "", text))


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_script() -> None:
    text = (PAGE / "index.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""]
    assert "style=" not in text
    assert not re.search(r"@import|url\(", (PAGE / "style.css").read_text())


# -- colours -------------------------------------------------------------------------------------------------------

STYLE = (PAGE / "style.css").read_text()
THEMES = {
    "light": re.search(r"^:root \{(.*?)^\}", STYLE, re.DOTALL | re.MULTILINE),
    "dark": re.search(r'^:root\[data-theme="dark"\] \{(.*?)^\}', STYLE, re.DOTALL | re.MULTILINE),
    "dark of the system": re.search(r':root:not\(\[data-theme="light"\]\) \{(.*?)\}', STYLE, re.DOTALL),
}
READ = [
    *((text, ground) for text in ("text", "muted", "accent") for ground in ("bg", "panel", "raised", "code", "soft")),
    *((text, ground) for text in ("good", "bad", "wait", "busy", "idle") for ground in ("panel", "bg", "raised", f"{text}-bg")),
    *((text, ground) for text in ("jkey", "jstr", "jlit") for ground in ("panel", "bg", "soft", "raised")),
    *((text, "soft") for text in ("good", "bad", "wait", "busy", "idle")),
    ("on-accent", "accent-bg"), ("text", "user"), ("text", "wait-bg"), ("text", "bad-bg"), ("muted", "user"),
]  # fmt: skip
"""Which colour of text is shown on which ground."""


def colours(theme: str) -> dict[str, str]:
    found = THEMES[theme]
    assert found is not None
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", found[1]))


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_wcag_defines_it() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_every_text_has_the_contrast_of_wcag_aa(theme: str) -> None:
    named = colours(theme)
    weak = {
        (text, ground): round(contrast(named[text], named[ground]), 2)
        for text, ground in READ
        if contrast(named[text], named[ground]) < 4.5
    }
    assert not weak


@pytest.mark.parametrize("theme", THEMES)
def test_borders_of_inputs_and_the_focus_ring_can_be_seen(theme: str) -> None:
    named = colours(theme)
    for line, ground in (("edge", "panel"), ("edge", "bg"), ("accent", "bg"), ("accent", "panel")):
        assert contrast(named[line], named[ground]) >= 3, (line, ground)


def test_the_dark_theme_of_the_switch_is_that_of_the_system() -> None:
    assert colours("dark") == colours("dark of the system")
    assert colours("dark").keys() == colours("light").keys()
