"""Users of a tenant, whom the company's issuer knows."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dragoman.cli import main
from dragoman.errors import Unavailable
from dragoman.hub.settings import InvalidSetting, Settings, load_settings
from dragoman.hub.tenants.users import Users
from tests.auth.issuer import AUDIENCE, EC, ISSUER, OTHER_EC, PUBLISHED, Pages, claims, mint
from tests.hub.house import Caller, House, events, house, message

CONFIGURATION, KEYS = f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"
RULES: dict[str, Any] = {"oidc_issuer": ISSUER, "oidc_audience": (AUDIENCE,)}


def trust(hub: House, pages: Pages | None = None, **rules: Any) -> None:
    """Let the hub read the pages of the issuer without a network."""
    given = Settings(**{**RULES, **{f"oidc_{name}": value for name, value in rules.items()}})
    pages = pages or Pages(**{CONFIGURATION: {"issuer": ISSUER, "jwks_uri": KEYS}, KEYS: PUBLISHED})
    hub.hub.users = Users(hub.hub.tenants, given, cast(Any, pages))


def user(hub: House, name: str = "ada", scope: str = "dragoman:run", **more: Any) -> Caller:
    said = {"sub": name, "scope": scope, "tenant": "acme", "exp": int(time.time()) + 300, **more}
    return Caller(hub.app, mint(claims(**said)))


async def test_a_user_acts_for_the_tenant_of_the_claim_and_shares_what_it_has() -> None:
    async with house(["one", "two"], **RULES) as hub:
        trust(hub)
        acme = await hub.tenant("acme")
        await hub.tenant("other")
        ada, bob = user(hub), user(hub, "bob", "profile dragoman:read")
        assert (await ada("GET", "/v1/whoami")).json | {"expires_at": 0} == {
            "tenant": {"id": 1, "name": "acme"},
            "kind": "user",
            "name": f"{ISSUER}#ada",
            "scope": "run",
            "expires_at": 0,
        }
        task = (await ada.rpc("index", "message/send", message("hi"))).json["result"]["id"]
        for other in (acme, bob):
            assert (await other.rpc("index", "tasks/get", {"id": task})).json["result"]["id"] == task
        assert (await bob.rpc("index", "message/send", message("hi"))).json["error"]
        assert (await ada("POST", "/v1/agents", {})).status == 403
        entries = await hub.hub.store.audit.entries()
        assert {entry.principal for entry in entries} >= {f"1/{ISSUER}#ada"}
        listed = (await acme("GET", "/v1/tokens")).json["tokens"]
        assert [(each["kind"], each["scope"]) for each in listed] == [
            ("token", "admin"),
            ("user", "run"),
            ("user", "read"),
        ]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"tenant": "nobody"}, 403),
        ({"tenant": None}, 403),
        ({"tenant": ["acme", "other"]}, 403),
        ({"tenant": ["acme", 2]}, 403),
        ({"tenant": ["acme", {"name": "other"}]}, 403),
        ({"tenant": [""]}, 403),
        ({"tenant": {"name": "acme"}}, 403),
        ({"scope": "openid profile"}, 403),
        ({"scope": None}, 403),
        ({"scope": "tenant:admin"}, 403),
        ({"iss": "https://evil.example"}, 401),
        ({"aud": "another"}, 401),
        ({"exp": 1}, 401),
        ({"sub": "x" * 1000}, 401),
        ({"sub": "ada\0"}, 401),
        ({"sub": "ada\n"}, 401),
        ({"sub": "ada\x1b[2J"}, 401),
        ({"tenant": "01"}, 403),
        ({"tenant": "1.0"}, 403),
        ({"tenant": "\u0661"}, 403),
        ({"tenant": ["acme"]}, 200),
        ({"tenant": "1"}, 200),
        ({"tenant": 1}, 200),
        ({"tenant": [1]}, 200),
    ],
)
async def test_a_user_of_an_unknown_tenant_or_without_a_scope_is_refused(
    more: dict[str, Any], status: int
) -> None:
    async with house(**RULES) as hub:
        trust(hub)
        await hub.tenant("acme")
        await hub.tenant("other")
        answer = await user(hub, **more)("GET", "/v1/agents")
        assert answer.status == status, answer.body
        assert "acme" not in answer.json.get("error", ""), "nobody learns which tenants there are"


async def test_a_token_that_somebody_else_signed_is_refused_over_all_bindings() -> None:
    async with house(**RULES) as hub:
        trust(hub)
        await hub.tenant("acme")
        forged = Caller(hub.app, mint(claims(tenant="acme", scope="dragoman:admin"), key=OTHER_EC))
        assert EC is not OTHER_EC
        assert (await forged("GET", "/v1/agents")).status == 401
        assert (await forged.rpc("index", "message/send", message("hi"))).status == 401
        assert (await forged("GET", "/v1/a2a/agents/index/tasks", a2a_version="1.0")).status == 401


async def test_a_stream_ends_when_the_token_of_its_user_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(**RULES) as hub:
        trust(hub)
        await hub.tenant("acme")
        stream = user(hub, exp=int(time.time()) + 300).open("GET", "/v1/notifications/stream")
        await stream.until(lambda: b"open" in stream.body)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 301)
        hub.hub.admission.check_readers_again()
        await stream.end()


async def test_users_without_an_issuer_are_refused() -> None:
    async with house() as hub:
        await hub.tenant("acme")
        assert (await user(hub)("GET", "/v1/agents")).status == 401


async def test_the_name_of_a_claim_may_have_dots() -> None:
    claim = "https://acme.example/tenant"
    async with house(**RULES) as hub:
        trust(hub, tenant_claim=claim)
        await hub.tenant("acme")
        ada = user(hub, **{claim: "acme", "tenant": "other"})
        assert (await ada("GET", "/v1/whoami")).json["tenant"]["name"] == "acme"


async def test_the_claims_are_those_of_the_settings() -> None:
    async with house(**RULES) as hub:
        trust(hub, tenant_claim="org", scope_claim="realm_access.roles", run=("staff", "crew"))
        await hub.tenant("acme")
        said = {"org": "acme", "tenant": "other", "scope": "dragoman:admin"}
        ada = user(hub, **said, realm_access={"roles": ["offline", "crew"]})
        assert (await ada("GET", "/v1/whoami")).json["scope"] == "run"
        assert (await user(hub, **said)("GET", "/v1/whoami")).status == 403


async def test_a_blocked_user_stays_blocked_and_the_work_of_the_user_stops() -> None:
    async with house([("one", asyncio.Event()), "back"], **RULES) as hub:
        trust(hub)
        acme = await hub.tenant("acme")
        ada, bob = user(hub), user(hub, "bob")
        live = ada.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        (row,) = [t for t in (await acme("GET", "/v1/tokens")).json["tokens"] if t["kind"] == "user"]
        assert (await acme("DELETE", f"/v1/tokens/{row['id']}")).json["cancelled"] == 1
        assert events(await live.end())[-1][1]["ok"] is False
        assert (await ada("GET", "/v1/agents")).status == 403
        assert (await bob("GET", "/v1/agents")).status == 200
        assert (await acme("PATCH", f"/v1/tokens/{row['id']}", {"revoked": False})).status == 200
        assert (await ada.ask("again"))[-1][1]["content"] == "back"
        (own, *_) = (await acme("GET", "/v1/tokens")).json["tokens"]
        assert (await acme("PATCH", f"/v1/tokens/{own['id']}", {"revoked": False})).status == 409


async def test_users_of_a_disabled_tenant_are_refused() -> None:
    async with house(**RULES) as hub:
        trust(hub)
        acme = await hub.tenant("acme")
        await hub.hub.tenants.disable(acme.tenant, True)
        assert (await user(hub)("GET", "/v1/agents")).status == 403


async def test_an_issuer_that_cannot_be_reached_is_no_failure_of_the_token() -> None:
    async with house(**RULES) as hub:
        trust(hub, pages=Pages())
        await hub.tenant("acme")
        answer = await user(hub)("GET", "/v1/agents")
        assert answer.status == Unavailable.http and "keys of the issuer" in answer.json["error"]


def test_an_issuer_needs_an_audience() -> None:
    with pytest.raises(InvalidSetting, match="oidc_audience"):
        load_settings({"oidc_issuer": ISSUER}, environment={}, config="none.toml")
    given = load_settings(
        {}, environment={"DRAGOMAN_OIDC_ISSUER": ISSUER, "DRAGOMAN_OIDC_AUDIENCE": "a, b"}, config="none.toml"
    )
    assert given.oidc_audience == ("a", "b")


@pytest.mark.parametrize("issuer", ["login.example.com", "http://login.example.com", "https://", "http://["])
def test_an_issuer_has_an_https_url(issuer: str) -> None:
    with pytest.raises(InvalidSetting, match="oidc_issuer is an https URL"):
        load_settings({"oidc_issuer": issuer, "oidc_audience": ("a",)}, environment={}, config="none.toml")


@pytest.mark.parametrize(
    ("document", "finding"),
    [
        ({**PUBLISHED, "issuer": "here"}, "ok     the issuer {issuer}: 3 keys"),
        ({"keys": [], "issuer": "here"}, "note   {issuer} has no key for signatures: no user can log in"),
        ({**PUBLISHED, "issuer": "elsewhere"}, "is not the configuration of {issuer}: no user can log in"),
        ({"issuer": "here"}, "has no keys: it is not a JWK set: it has no keys: no user can log in"),
    ],
)
def test_doctor_says_whether_users_can_log_in(
    document: Any, finding: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = msgspec.json.encode({**document, "jwks_uri": f"{issuer}/keys"}).replace(
                b'"here"', msgspec.json.encode(issuer)
            )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server, ThreadPoolExecutor(1) as thread:
        issuer = f"http://127.0.0.1:{server.server_port}"
        thread.submit(server.serve_forever)
        try:
            options = ["--oidc-issuer", issuer, "--oidc-audience", "a", "--data", str(tmp_path)]
            assert main(["doctor", "--model", "echo", *options]) == 0
        finally:
            server.shutdown()
    assert finding.format(issuer=issuer) in capsys.readouterr().out
