"""What a page is shown of the wire: masked, cut, frame by frame."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.client.transport.tap import WireEvent
from dragoman.console.wire import MAX_OPEN_REQUESTS, MAX_TEXT_BYTES, FrameSplitter, Masker, WireView

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream; charset=utf-8"}


class Shown:
    """A view, and what it showed."""

    def __init__(self, *secrets: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.view = WireView(self._show, Masker(lambda: secrets))

    async def _show(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    async def take(self, kind: str, n: int = 1, **about: Any) -> None:
        await self.view(WireEvent(n=n, kind=kind, time=1.0, sent=kind == "request", **about))


async def test_a_request_and_its_answer_are_shown_with_their_headers() -> None:
    shown = Shown()
    await shown.take(
        "request", method="POST", url="https://a.test/rpc", headers={"A2A-Version": "1.0"}, body=b"{}"
    )
    await shown.take("response", status=200, headers=JSON)
    await shown.take("body", body=b'{"a":')
    await shown.take("body", body=b"1}")
    await shown.take("end")
    request, response, end = shown.events
    assert (request["direction"], request["method"], request["text"]) == ("out", "POST", "{}")
    assert (response["direction"], response["status"], response["text"]) == ("in", 200, '{"a":1}')
    assert response["headers"] == JSON and end["kind"] == "end"
    assert {each["n"] for each in shown.events} == {1}


async def test_every_server_sent_event_is_a_frame_with_its_own_time() -> None:
    shown = Shown()
    await shown.take("request", url="https://a.test")
    await shown.take("response", status=200, headers=SSE)
    await shown.view(WireEvent(n=1, kind="body", time=2.0, body=b"id: 1\ndata: a\n\n: ke"))
    await shown.view(WireEvent(n=1, kind="body", time=3.0, body=b"ep\n\ndata: b"))
    await shown.take("end", error="it broke")
    frames = [(each["text"].strip(), each["ms"]) for each in shown.events if each["kind"] == "frame"]
    assert frames == [("id: 1\ndata: a", 1000.0), (": keep", 2000.0), ("data: b", 0.0)]
    assert shown.events[-1]["error"] == "it broke"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_frames_are_found_however_the_stream_was_cut(end: bytes) -> None:
    whole = b"data: one" + end + b"data: two" + end
    for size in range(1, len(whole)):
        splitter, found = FrameSplitter(), list[tuple[bytes, int]]()
        for at in range(0, len(whole), size):
            found += splitter.feed(whole[at : at + size])
        assert [kept.strip() for kept, _ in found] == [b"data: one", b"data: two"]


def test_of_a_frame_of_ten_megabytes_the_beginning_is_kept() -> None:
    splitter = FrameSplitter()
    for _ in range(160):
        assert list(splitter.feed(b"x" * 65536)) == []
        assert len(splitter._beginning) <= MAX_TEXT_BYTES
    ((kept, size),) = splitter.feed(b"\n\n")
    assert len(kept) == MAX_TEXT_BYTES and size == 10 * 2**20 + 2


async def test_a_long_body_is_cut_and_says_so() -> None:
    shown = Shown()
    await shown.take("request", url="https://a.test")
    await shown.take("response", status=200, headers=JSON)
    for _ in range(40):
        await shown.take("body", body=b"y" * 65536)
    await shown.take("end")
    response = shown.events[1]
    assert len(response["text"]) == MAX_TEXT_BYTES and response["cut"] and response["bytes"] == 40 * 65536


async def test_answers_that_never_end_are_forgotten() -> None:
    shown = Shown()
    for n in range(3 * MAX_OPEN_REQUESTS):
        await shown.take("request", n, url="https://a.test")
    assert len(shown.view._open) <= MAX_OPEN_REQUESTS


SECRET = "s3cret-value-of-somebody"


@pytest.mark.parametrize(
    "about",
    [
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        {"headers": {"Authorization": f"{SECRET}"}},
        {"headers": {"X-API-Key": SECRET}},
        {"headers": {"Cookie": f"session={SECRET}"}},
        {"headers": {"set-cookie": f"session={SECRET}; HttpOnly"}},
        {"headers": {"X-Goog-Api-Key": SECRET}},
        {"url": f"https://a.test/rpc?api_key={SECRET}&x=1"},
        {"url": f"https://a.test/rpc?access_token={SECRET}"},
        {"url": f"https://me:{SECRET}@a.test/rpc"},
        {"url": f"https://a.test/callback?code={SECRET}&state={SECRET}"},
        {"body": f"grant_type=x&client_secret={SECRET}&code={SECRET}".encode(), "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {"body": f'{{"access_token": "{SECRET}", "refresh_token": "{SECRET}"}}'.encode()},
        {"body": f'{{"device_code": "{SECRET}"}}'.encode()},
        {"body": f'{{"pushNotificationConfig": {{"token": "{SECRET}", "authentication": {{"credentials": "{SECRET}"}}}}}}'.encode()},
        {"body": f'{{"password": "{SECRET} and what was cut off'.encode()},
    ],
    ids=str,
)  # fmt: skip
async def test_a_secret_is_not_shown(about: dict[str, Any]) -> None:
    shown = Shown()
    await shown.take("request", **{"url": "https://a.test", **about})
    assert SECRET not in str(shown.events)


@pytest.mark.parametrize(
    "about",
    [
        {"headers": {"X-Weather": SECRET}},
        {"url": f"https://a.test/?k={SECRET}"},
        {"body": f"echo: {SECRET}".encode()},
    ],
    ids=str,
)
async def test_a_secret_that_is_known_is_not_shown_anywhere(about: dict[str, Any]) -> None:
    shown = Shown(SECRET)
    await shown.take("request", **{"url": "https://a.test", **about})
    assert SECRET not in str(shown.events)


async def test_values_that_are_not_secret_are_shown_unchanged() -> None:
    shown = Shown()
    text = '{"name": "Ada", "state": "TASK_STATE_WORKING", "code": -32001, "metadata": {"key": "value"}}'
    await shown.take(
        "request", url="https://a.test/?page=2", headers={"Accept": "text/event-stream"}, body=text.encode()
    )
    (request,) = shown.events
    assert (request["text"], request["url"]) == (text, "https://a.test/?page=2")
    assert request["headers"] == {"Accept": "text/event-stream"}
