"""Log in at agents elsewhere: tokens stay on the server, and the page has a handle."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dragoman.client.transport.network import HttpTransport
from dragoman.console import login as logins
from tests.console.calls import inspector, named, text
from tests.console.conftest import HOST, Operator
from tests.console.oauth_server import CLIENT, SECRET, OAuthSite, oauth_server
from tests.server.wire import Answer
from tests.waiting import until


async def log_in(operator: Operator, site: OAuthSite, kind: str, **more: Any) -> dict[str, Any]:
    answer = await operator("POST", "/login", {"url": site.base, "kind": kind, **more})
    assert answer.status == 200, answer.body
    made: dict[str, Any] = answer.json
    return made


async def says_fine(operator: Operator, site: OAuthSite, handle: str) -> Answer:
    answer = await operator(
        "POST", "/talk", {"url": site.base, "credentials": handle, "message": text("hello")}
    )
    assert "fine" in str(named(answer, "event")), answer.body
    return answer


async def browse(url: str) -> str:
    """Open the login page, as a browser does: where it sends the browser back to."""
    transport = HttpTransport()
    try:
        response = await transport.request("GET", url, {})
        await response.read()
        assert response.status == 302
        return response.headers["location"]
    finally:
        await transport.close()


async def come_back(operator: Operator, url: str) -> Answer:
    """The browser follows the redirect to the console, without the cookie of a session."""
    token, operator.token = operator.token, ""
    try:
        parts = urlsplit(url)
        return await operator("GET", f"{parts.path}?{parts.query}", sec_fetch_site="cross-site")
    finally:
        operator.token = token


async def test_a_login_in_the_browser_with_pkce() -> None:
    async with oauth_server() as site, inspector() as operator:
        made = await log_in(operator, site, "authorizationCode", clientId=CLIENT, scopes="read")
        assert made["state"] == "pending"
        asked = parse_qs(urlsplit(made["authorizeUrl"]).query)
        assert asked["redirect_uri"] == [f"http://{HOST}/console/api/login/callback"]
        assert asked["code_challenge_method"] == ["S256"] and len(asked["state"][0]) >= 32
        assert asked["scope"] == ["read"] and "code_verifier" not in asked
        page = await come_back(operator, await browse(made["authorizeUrl"]))
        assert page.status == 200 and b"You are logged in" in page.body and b"<script" not in page.body
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        now = await operator.get(f"/login/{made['handle']}")
        assert (now["state"], now["authorizeUrl"]) == ("ready", None)
        answer = await says_fine(operator, site, made["handle"])
        (token,) = site.valid
        for shown in (answer.body, str(made).encode(), str(now).encode(), page.body):
            assert token.encode() not in shown, "the token stays on the server"


async def test_a_browser_that_we_did_not_send_is_refused() -> None:
    async with oauth_server() as site, inspector() as operator:
        made = await log_in(operator, site, "authorizationCode", clientId=CLIENT)
        back = await browse(made["authorizeUrl"])
        forged = await come_back(operator, back.replace("state=", "state=x"))
        assert forged.status == 403
        assert (await come_back(operator, back)).status == 200
        assert (await come_back(operator, back)).status == 403, "a state works once"


async def test_a_person_who_says_no_is_reported_as_text() -> None:
    async with oauth_server() as site, inspector() as operator:
        site.denies = True
        made = await log_in(operator, site, "authorizationCode", clientId=CLIENT)
        page = await come_back(operator, await browse(made["authorizeUrl"]))
        assert b"&lt;b&gt;she said no&lt;/b&gt;" in page.body and b"<b>" not in page.body
        now = await operator.get(f"/login/{made['handle']}")
        assert now["state"] == "failed" and "access_denied" in now["message"]


async def test_a_browser_that_comes_back_without_a_code_has_not_logged_in() -> None:
    async with oauth_server() as site, inspector() as operator:
        made = await log_in(operator, site, "authorizationCode", clientId=CLIENT)
        back = urlsplit(await browse(made["authorizeUrl"]))
        state = parse_qs(back.query)["state"][0]
        page = await come_back(operator, back._replace(query=f"state={state}").geturl())
        assert b"The login failed" in page.body and b"there is no code" in page.body
        assert (await operator.get(f"/login/{made['handle']}"))["state"] == "failed"


async def test_a_login_that_nobody_uses_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with oauth_server() as site, inspector() as operator:
        made = await log_in(operator, site, "bearer", token="a-token-of-somebody")
        monkeypatch.setattr(logins, "LOGIN_SECONDS", -1.0)
        assert (await operator.get("/login"))["logins"] == []
        assert (await operator("GET", f"/login/{made['handle']}")).status == 404
        asked = {"url": site.base, "credentials": made["handle"], "message": text("hello")}
        assert (await operator("POST", "/talk", asked)).status == 404


async def test_client_credentials_get_a_token_and_wrong_ones_are_reported() -> None:
    async with oauth_server("clientCredentials") as site, inspector() as operator:
        made = await log_in(operator, site, "clientCredentials", clientId=CLIENT, clientSecret=SECRET)
        assert made["state"] == "ready"
        answer = await says_fine(operator, site, made["handle"])
        assert SECRET.encode() not in answer.body
        refused = await log_in(
            operator, site, "clientCredentials", clientId=CLIENT, clientSecret="wrong-secret"
        )
        assert refused["state"] == "failed" and "invalid_client" in refused["message"]


async def test_a_device_code_is_shown_and_is_ready_when_a_person_approves_it() -> None:
    async with oauth_server("deviceCode") as site, inspector() as operator:
        made = await log_in(operator, site, "deviceCode", clientId=CLIENT)
        assert (made["state"], made["userCode"]) == ("pending", "ABCD-EFGH")
        assert made["verificationUrl"] == f"{site.base}/activate" and "device-code-of-somebody" not in str(
            made
        )
        early = await operator(
            "POST", "/talk", {"url": site.base, "credentials": made["handle"], "message": text("hello")}
        )
        assert early.status == 403
        site.approved = True
        await until(lambda: operator.get(f"/login/{made['handle']}"), lambda now: now["state"] == "ready")
        await says_fine(operator, site, made["handle"])


@pytest.mark.parametrize(
    ("kind", "scheme", "given"),
    [
        ("bearer", {"httpAuthSecurityScheme": {"scheme": "bearer"}}, {"token": "a-token-of-somebody"}),
        ("apiKey", {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}, {"key": "a-token-of-somebody"}),
        ("apiKey", {"apiKeySecurityScheme": {"location": "query", "name": "k"}}, {"key": "a-token-of-somebody"}),
        ("apiKey", {"httpAuthSecurityScheme": {"scheme": "x"}}, {"key": "a-token-of-somebody", "name": "X-Key", "in": "header"}),
    ],
)  # fmt: skip
async def test_a_key_or_token_is_used_as_the_card_asks_and_never_shown(
    kind: str, scheme: dict[str, Any], given: dict[str, str]
) -> None:
    async with oauth_server(scheme=scheme) as site, inspector() as operator:
        site.valid.add("a-token-of-somebody")
        made = await log_in(operator, site, kind, **given)
        answer = await says_fine(operator, site, made["handle"])
        assert b"a-token-of-somebody" not in answer.body and "a-token-of-somebody" not in str(made)


async def test_a_login_is_for_one_origin() -> None:
    async with oauth_server() as site, oauth_server() as other, inspector() as operator:
        made = await log_in(operator, site, "bearer", token="a-token-of-somebody")
        asked = {"url": other.base, "credentials": made["handle"], "message": text("hello")}
        for path, body in (
            ("/talk", asked),
            ("/inspect", {"url": other.base, "credentials": made["handle"]}),
        ):
            answer = await operator("POST", path, body)
            assert answer.status == 403 and "this login is for" in answer.json["error"]["message"]
        assert other.asked == []


async def test_a_card_cannot_send_the_login_elsewhere() -> None:
    async with oauth_server("clientCredentials") as site, inspector() as operator:
        flows = site.document["securitySchemes"]["it"]["oauth2SecurityScheme"]["flows"]
        flows["clientCredentials"]["tokenUrl"] = "https://evil.test/token"
        made = await log_in(operator, site, "clientCredentials", clientId=CLIENT, clientSecret=SECRET)
        assert made["state"] == "failed" and "not on the agent's own origin" in made["message"]


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "http://me:pw@127.0.0.1/authorize"]
)
async def test_a_page_is_not_told_to_open_anything_but_a_web_page(url: str) -> None:
    async with oauth_server() as site, inspector() as operator:
        given = {"authorizationUrl": url, "tokenUrl": f"{site.base}/token", "clientId": CLIENT}
        answer = await operator("POST", "/login", {"url": site.base, "kind": "authorizationCode", **given})
        assert answer.status == 400 or answer.json["state"] == "failed"
        assert not answer.json.get("authorizeUrl")


async def test_private_token_servers_are_refused_unless_they_are_allowed() -> None:
    async with oauth_server("clientCredentials") as site, inspector(allow_private=False) as operator:
        made = await log_in(
            operator,
            site,
            "clientCredentials",
            clientId=CLIENT,
            clientSecret=SECRET,
            tokenUrl=f"{site.base}/token",
        )
        assert made["state"] == "failed" and "not on the internet" in made["message"]
        assert site.asked == []


async def test_a_variable_of_the_server_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVATE_OF_THE_SERVER", "a-token-of-somebody")
    async with (
        oauth_server(scheme={"httpAuthSecurityScheme": {"scheme": "bearer"}}) as site,
        inspector() as operator,
    ):
        made = await log_in(operator, site, "bearer", token="env:PRIVATE_OF_THE_SERVER")
        await operator(
            "POST", "/talk", {"url": site.base, "credentials": made["handle"], "message": text("x")}
        )
        assert site.asked and not any("a-token-of-somebody" in str(asked.headers) for asked in site.asked)


async def test_logins_are_listed_forgotten_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "MAX_LOGINS", 3)
    async with oauth_server() as site, inspector() as operator:
        made = [await log_in(operator, site, "bearer", token=f"token-number-{n}") for n in range(5)]
        listed = (await operator.get("/login"))["logins"]
        assert [each["handle"] for each in listed] == [each["handle"] for each in made[-3:]]
        assert "token-number" not in str(listed)
        assert (await operator("DELETE", f"/login/{made[-1]['handle']}")).status == 204
        assert (await operator("GET", f"/login/{made[-1]['handle']}")).status == 404


@pytest.mark.parametrize(
    "body",
    [
        {"url": "https://a.test", "kind": "magic"},
        {"url": "https://a.test", "kind": "bearer"},
        {"url": "ftp://a.test", "kind": "bearer", "token": "x"},
        {"url": "https://", "kind": "bearer", "token": "x"},
        {"url": "https://ada@a.test", "kind": "bearer", "token": "x"},
        {"url": "https://:password@a.test", "kind": "bearer", "token": "x"},
        {"url": f"https://a.test/{'a' * 2048}", "kind": "bearer", "token": "x"},
        {"url": "https://a.test", "kind": "apiKey", "key": "x", "name": "k", "location": "body"},
        {"url": "https://a.test", "kind": "bearer", "token": "x", "colour": "red"},
    ],
    ids=lambda body: str(body)[:60],
)
async def test_a_login_with_a_wrong_kind_member_or_url_is_refused(body: dict[str, Any]) -> None:
    async with inspector() as operator:
        assert (await operator("POST", "/login", body)).status == 400
        assert (await operator.get("/login"))["logins"] == []
