"""Who may use the console, and from where."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman import Agent
from dragoman.console import AgentConsole, access
from dragoman.server.application import application
from tests.console.conftest import HOST, TOKEN, Operator, console_app
from tests.server.wire import request

OURS = {"origin": f"http://{HOST}", "sec_fetch_site": "same-origin"}


async def test_the_printed_url_has_a_token_that_works_once() -> None:
    async with console_app(token="") as (app, lines):
        (line,) = lines
        url, _, token = line.partition("#token=")
        assert url == f"console: http://{HOST}/console/"
        page = Operator(app, token="")
        wrong = await page("POST", "/session", {"token": f"{token}x"}, **OURS)
        assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
        assert (await page("GET", "/me", authorization=f"Bearer {token}")).status == 401
        answer = await page("POST", "/session", {"token": token}, **OURS)
        assert answer.status == 204
        cookie = answer.headers["set-cookie"]
        for word in ("HttpOnly", "SameSite=Strict", "Path=/console;"):
            assert word in cookie
        assert "Secure" not in cookie
        page.cookie = cookie.partition(";")[0]
        me = await page.get("/me")
        assert (me["role"], me["tenant"], me["kind"]) == ("operator", None, "server")
        again = await page("POST", "/session", {"token": token}, **OURS)
        assert again.status == 401


async def test_without_a_session_everything_is_401_in_json(operator: Operator) -> None:
    operator.token = ""
    for path in ("/me", "/agents", "/tasks", "/tasks/x/records", "/nothing"):
        answer = await operator("GET", path)
        assert (answer.status, answer.json["error"]["code"]) == (401, "UNAUTHENTICATED"), path


async def test_a_session_is_good_after_a_restart_and_on_another_worker(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with console_app(token="", store=store) as (app, lines):
        page = Operator(app, token="")
        answer = await page("POST", "/session", {"token": lines[0].partition("#token=")[2]}, **OURS)
        cookie = answer.headers["set-cookie"].partition(";")[0]
    assert (tmp_path / "tasks.db-console").stat().st_mode & 0o777 == 0o600
    async with console_app(token="", store=store) as (app, _):
        page = Operator(app, token="")
        page.cookie = cookie
        assert (await page.get("/me"))["role"] == "operator"


async def test_another_operator_token_ends_all_sessions() -> None:
    async with console_app() as (app, _):
        page = Operator(app, token="")
        cookie = (await page("POST", "/session", {"token": TOKEN}, **OURS)).headers["set-cookie"]
    async with console_app(token=TOKEN + "2") as (app, _):
        page = Operator(app, token="")
        page.cookie = cookie.partition(";")[0]
        assert (await page("GET", "/me")).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {},
    ],
)
async def test_a_cookie_is_refused_unless_our_own_page_sends_it(headers: dict[str, str]) -> None:
    async with console_app() as (app, _):
        page = Operator(app, token="")
        cookie = (await page("POST", "/session", {"token": TOKEN}, **OURS)).headers["set-cookie"]
        page.cookie = cookie.partition(";")[0]
        for ours in (OURS, {"origin": OURS["origin"]}, {"sec_fetch_site": OURS["sec_fetch_site"]}):
            assert (await page("DELETE", "/session", **ours)).status == 204
        assert (await page("DELETE", "/session", **headers)).status == 403


async def test_an_address_that_a_person_types_reads_but_changes_nothing() -> None:
    async with console_app() as (app, _):
        page = Operator(app, token="")
        cookie = (await page("POST", "/session", {"token": TOKEN}, **OURS)).headers["set-cookie"]
        page.cookie = cookie.partition(";")[0]
        assert (await page("GET", "/me", sec_fetch_site="none")).status == 200
        assert (await page("DELETE", "/session", sec_fetch_site="none")).status == 403


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}],
    ids=str,
)
async def test_a_page_of_another_origin_cannot_log_in_even_with_the_token(headers: dict[str, str]) -> None:
    async with console_app() as (app, _):
        page = Operator(app, token="")
        answer = await page("POST", "/session", {"token": TOKEN}, **headers)
        assert (answer.status, "set-cookie" in answer.headers) == (403, False)


async def test_a_session_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    later = SimpleNamespace(monotonic=time.monotonic, seconds=0.0)
    later.time = lambda: time.time() + later.seconds
    monkeypatch.setattr(access, "time", later)
    async with console_app() as (app, _):
        page = Operator(app, token="")
        cookie = (await page("POST", "/session", {"token": TOKEN}, **OURS)).headers["set-cookie"]
        page.cookie = cookie.partition(";")[0]
        later.seconds = access.SESSION_SECONDS - 60
        assert (await page("GET", "/me", **OURS)).status == 200
        later.seconds = access.SESSION_SECONDS + 60
        assert (await page("GET", "/me", **OURS)).status == 401


async def test_a_name_that_is_not_ours_is_refused_for_pages_and_api(operator: Operator) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000"):
        for path in ("/console/", "/me"):
            answer = await operator("GET", path, host=host)
            assert answer.status == 403, (host, path)
    for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "10.0.0.5"):
        assert (await operator("GET", "/me", host=host)).status == 200, host
    assert (await operator("GET", "/me", host="a b")).status == 400


async def test_wrong_tokens_are_refused_and_then_limited(operator: Operator) -> None:
    operator.token = "op_wrong"
    statuses = [(await operator("GET", "/me")).status for _ in range(access.MAX_FAILURES + 1)]
    assert statuses == [401] * access.MAX_FAILURES + [429]
    headers = {"host": HOST, "authorization": f"Bearer {TOKEN}"}
    elsewhere = await request(operator.app, "GET", "/console/api/me", headers=headers, client=("10.0.0.9", 1))
    assert elsewhere.status == 200, "a stranger cannot lock an operator out"


async def test_addresses_with_wrong_tokens_are_counted_up_to_a_limit_and_the_oldest_is_forgotten(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MAX_ADDRESSES", 3)
    headers = {"host": HOST, "authorization": "Bearer op_wrong"}

    async def statuses(*addresses: str) -> list[int]:
        answers = [
            await request(operator.app, "GET", "/console/api/me", headers=headers, client=(address, 1))
            for address in addresses
        ]
        return [answer.status for answer in answers]

    guessing = ["10.0.0.9"] * (access.MAX_FAILURES + 1)
    assert (await statuses(*guessing))[-1] == 429
    assert await statuses("10.0.0.1", "10.0.0.2", "10.0.0.9") == [401, 401, 429]
    assert await statuses("10.0.0.3", "10.0.0.9") == [401, 401], "the oldest of four addresses is forgotten"


async def test_no_answer_has_cors_headers_even_if_agents_have() -> None:
    async with console_app(cors_origins=["*"]) as (app, _):
        operator = Operator(app)
        for method in ("GET", "OPTIONS"):
            answer = await operator(method, "/me", origin="https://evil.example")
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_every_answer_has_the_security_headers(operator: Operator) -> None:
    for path in ("/me", "/console/", "/nothing", "/console/nothing"):
        headers = (await operator("GET", path)).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


async def test_the_page_is_served_with_an_etag_and_nothing_above_it(operator: Operator) -> None:
    page = await operator("GET", "/console/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert (await operator("GET", "/console/", if_none_match=page.headers["etag"])).status == 304
    moved = await operator("GET", "/console")
    assert (moved.status, moved.headers["location"]) == (308, "console/")
    for path in (
        "/console/../access.py",
        "/console/%2e%2e/access.py",
        "/console/.hidden",
        "/console//etc/passwd",
    ):
        assert (await operator("GET", path)).status == 404, path


async def test_an_agent_at_the_root_still_has_every_other_path(operator: Operator) -> None:
    task = await operator.send("tea")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


def test_a_public_address_needs_a_token_and_prints_none() -> None:
    with pytest.raises(SystemExit, match="DRAGOMAN_CONSOLE_TOKEN"):
        AgentConsole().prepare(
            host="0.0.0.0", url="http://0.0.0.0:1", store="memory:", public_url="", tls=False
        )
    lines = AgentConsole(TOKEN).prepare(
        host="0.0.0.0", url="http://0.0.0.0:1", store="memory:", public_url="https://a.example", tls=False
    )
    assert "token=" not in "".join(lines) and "https://a.example/console/" in "".join(lines)


@pytest.mark.parametrize("token", ["secret", "é" * 20, "two words of a token", "a" * 20 + "\n"], ids=ascii)
def test_a_token_that_is_short_or_no_word_of_ascii_is_refused(token: str) -> None:
    with pytest.raises(SystemExit, match="16 characters"):
        AgentConsole(token)


def test_a_console_without_a_token_does_not_open() -> None:
    with pytest.raises(ValueError, match="operator token"):
        application(Agent("Hello"), store="memory:", console=AgentConsole())


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert access.TokenFile(file).read() == access.TokenFile(file).read()
    file.chmod(0o644)
    with pytest.raises(SystemExit, match="belongs to another user, or others can read it"):
        access.TokenFile(file).read()


def test_an_agent_cannot_have_the_path_of_the_console() -> None:
    with pytest.raises(ValueError, match="/console"):
        application(Agent("Console"), Agent("Other"), store="memory:", console=AgentConsole(TOKEN))
