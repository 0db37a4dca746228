"""`dragoman init`, `doctor`, `tenant`, `agent`, and what `hub` is told."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dragoman.cli import main
from dragoman.hub.assembly import application
from dragoman.hub.models.hosted import find_missing_key
from dragoman.hub.models.local import INSTALL
from dragoman.hub.settings import DEFAULTS, InvalidSetting, Settings, load_settings
from dragoman.hub.store.database import Database
from dragoman.hub.store.tenants import Tenants
from dragoman.server.runtime import running
from tests import nats, postgres
from tests.hub.house import ON_POSTGRES, SCOUT, house, store_of, tables_of
from tests.ports import free_port

only_sqlite = pytest.mark.skipif(ON_POSTGRES, reason="about the files of SQLite")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "DRAGOMAN_DATA"):
        monkeypatch.delenv(name, raising=False)
    if ON_POSTGRES:
        monkeypatch.setenv("DRAGOMAN_STORE", store_of(tmp_path / "d"))
    return tmp_path


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text(
        '[hub]\nport = 1\nhost = "::1"\nmodel = "echo"\nagents = ["a.py"]\n'
    )
    given = load_settings(
        {"port": "3", "host": None}, environment={"DRAGOMAN_PORT": "2", "DRAGOMAN_CORS_ORIGINS": "a, b"}
    )
    assert (given.port, given.host, given.model, given.agents) == (3, "::1", "echo", ("a.py",))
    assert given.cors_origins == ("a", "b")
    assert load_settings(environment={"DRAGOMAN_ALLOW_EXEC": "true"}).allow_exec is True


def test_a_setting_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"^DRAGOMAN_PORT must be a whole number, not a text"):
        load_settings(environment={"DRAGOMAN_PORT": "soon"})
    (tmp_path / "dragoman.toml").write_text("[hub]\nprot = 1\n")
    with pytest.raises(InvalidSetting, match="'prot'"):
        load_settings(environment={})


def test_limits_of_a_request_are_settings(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text("[hub]\nhead_timeout = 1\nbody_timeout = 2\nmax_body = 3000\n")
    given = load_settings({"body_timeout": "4"}, environment={"DRAGOMAN_READ_RATE": "5"})
    assert (given.head_timeout, given.body_timeout, given.max_body, given.read_rate) == (1, 4, 3000, 5)
    _, app = application(given, store="memory:")
    assert (app.limits.head_timeout, app.limits.body_timeout, app.limits.max_body) == (1, 4, 3000)
    assert (app.limits.read_rate, app.limits.write_timeout) == (5, 60)


@pytest.mark.parametrize(
    "wrong",
    [
        "max_body=0",
        "head_timeout=0",
        "write_timeout=inf",
        "read_rate=-1",
        "max_connections=-1",
        "port=65536",
        "grpc_port=-1",
        "rate_per_min=-1",
        "rate_burst=-1",
        "max_concurrent=-1",
        "context_window=-1",
        "idempotency_hours=-1",
        "exec_seconds=0",
        "exec_memory_mb=0",
        "exec_disk_mb=0",
        "drain=-1",
        "drain=nan",
        "retain_days=-1",
    ],
)
def test_a_setting_with_an_impossible_value_is_refused(wrong: str) -> None:
    name, _, value = wrong.partition("=")
    with pytest.raises(InvalidSetting, match=f"^--{name.replace('_', '-')} (must be|has a value)"):
        load_settings({name: value}, environment={})


def test_a_wrong_table_of_settings_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text("hub = 3\n")
    with pytest.raises(InvalidSetting, match="hub is not a table"):
        load_settings(environment={})


@only_sqlite
def test_files_of_the_hubs_commands_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    assert main(["tenant", "add", "acme", "--data", "d"]) == 0
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert [f.name for f in (tmp_path / "d").iterdir() if f.stat().st_mode & 0o077] == []


def test_files_of_init_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    assert main(["init", "--data", "a/b"]) == 0
    made = list(tmp_path.rglob("*"))
    tables = set() if ON_POSTGRES else {"hub.db"}
    assert {path.name for path in made} >= {"a", "b", "dragoman.toml", "mcp_servers.json", *tables}
    assert [path.name for path in made if path.stat().st_mode & 0o077] == []


@pytest.mark.skipif(not postgres.available(), reason="PostgreSQL is not installed")
def test_the_hub_that_init_says_is_next_is_the_one_that_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAGOMAN_STORE", raising=False)
    store = postgres.server().database(f"init_{uuid4().hex}")
    assert main(["init", "--data", "d", "--store", store]) == 0
    assert capsys.readouterr().out.endswith("next: dragoman hub\n")
    assert load_settings().store == store
    (tmp_path / "dragoman.toml").unlink()
    secret = store + "&password=s3cret"
    assert main(["init", "--data", "d", "--store", secret]) == 0
    assert capsys.readouterr().out.endswith("next: dragoman hub, with the same --store\n")
    assert "s3cret" not in (tmp_path / "dragoman.toml").read_text()
    assert main(["init", "--data", "d", "--store", store]) == 0, "existing files are not changed"
    assert capsys.readouterr().out.endswith("next: dragoman hub, with the same --store\n")


def test_init_names_no_database_that_it_cannot_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAGOMAN_STORE", raising=False)
    nobody = "postgresql://somebody@127.0.0.1:9/hub"
    assert main(["init", "--data", "d", "--store", nobody]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "dragoman.toml").exists()


@pytest.mark.skipif(not postgres.available(), reason="PostgreSQL is not installed")
def test_doctor_says_that_hubs_of_a_database_need_one_place_for_large_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAGOMAN_STORE", raising=False)
    told = "let all hubs of the database share it"
    assert main(["init", "--data", "d"]) == 0
    main(["doctor", "--data", "d", "--model", "echo"])
    assert told not in capsys.readouterr().out
    several = ["--data", "d", "--model", "echo", "--store", postgres.server().database(f"init_{uuid4().hex}")]
    main(["doctor", *several])
    assert told in capsys.readouterr().out
    main(["doctor", *several, "--blobs", "files"])
    assert told not in capsys.readouterr().out


def test_the_policy_of_a_tenant_is_shown_and_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--data", "d"]) == 0
    changes = ["tokens_per_day=5000", "models=openai/*,fast", "approve=none", "max_todos=7"]
    assert main(["tenant", "policy", "default", *changes, "--data", "d"]) == 0
    assert main(["tenant", "policy", "default", "max_todos=default", "--data", "d"]) == 0
    capsys.readouterr()
    assert main(["tenant", "policy", "1", "--data", "d"]) == 0
    shown = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    for row in (
        ["tokens_per_day", "5000", "tenant"],
        ["models", "openai/*, fast", "tenant"],
        ["approve", "none", "tenant"],
        ["max_todos", "2000", "hub"],
    ):
        assert row in shown
    for wrong in ("max_todos", "max_todos=-1", "max_todos=many", "max_todo=1", "approve=/rm"):
        assert main(["tenant", "policy", "default", wrong, "--data", "d"]) == 1
        assert "dragoman: " in capsys.readouterr().err


def test_an_agent_whose_model_its_tenant_may_not_use_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--data", "d"]) == 0
    (tmp_path / "scout.json").write_text(json.dumps({**SCOUT, "model": "openai/gpt-x"}))
    apply = ["agent", "apply", "scout.json", "--tenant", "default", "--data", "d"]
    assert main(apply) == 0
    assert "which this tenant may not use" in capsys.readouterr().err
    assert main(["tenant", "policy", "default", "models=openai/*", "--data", "d"]) == 0
    assert main(apply) == 0
    assert "may not use" not in capsys.readouterr().err


def test_doctor_says_that_the_hub_cannot_start_with_its_bus(capsys: pytest.CaptureFixture[str]) -> None:
    for bus in (f"nats://127.0.0.1:{free_port()}", "redis://host"):
        assert main(["doctor", "--model", "echo", "--data", "d", "--bus", bus]) == 1
        assert "WRONG" in capsys.readouterr().out.splitlines()[-1]
    if nats.available():
        assert main(["doctor", "--model", "echo", "--data", "d", "--bus", nats.server().url]) == 0
        assert "ok     the bus" in capsys.readouterr().out


def test_doctor_says_that_others_can_look_into_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--data", "d"]) == 0
    main(["doctor", "--data", "d", "--model", "echo"])
    assert "chmod 700" not in capsys.readouterr().out
    (tmp_path / "d").chmod(0o755)
    main(["doctor", "--data", "d", "--model", "echo"])
    assert "chmod 700" in capsys.readouterr().out


def test_the_admin_token_is_shown_though_the_first_start_fails(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "dragoman.cli",
            "hub",
            "--data",
            "d",
            "--model",
            "echo",
            "--port",
            str(port),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        again = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ran.returncode != 0 and str(port) in ran.stderr, ran
    (token,) = re.findall(r"^admin:  (adm_[0-9a-f]{64})$", ran.stdout, re.MULTILINE)
    assert "`dragoman tenant rotate-admin`, with the same --data, makes another" in ran.stdout
    assert "adm_" not in again.stdout, "it is there, and was shown"
    assert asyncio.run(on_tenants(tmp_path / "d", lambda tenants: tenants.is_admin(token)))


async def on_tenants(folder: Path, work: Callable[[Tenants], Awaitable[Any]]) -> Any:
    """What `work` returns for the tenants of a hub that does not run."""
    database: Database = await tables_of(folder).open()
    try:
        return await work(Tenants(database))
    finally:
        await database.close()


def test_the_admin_token_is_rotated_from_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", "--data", "d"]) == 0
    (first,) = re.findall(r"adm_\w+", capsys.readouterr().out)
    assert main(["tenant", "rotate-admin", "--data", "d"]) == 0
    second = capsys.readouterr().out.strip()
    folder = tmp_path / "d"
    assert asyncio.run(on_tenants(folder, lambda tenants: tenants.is_admin(second)))
    assert not asyncio.run(on_tenants(folder, lambda tenants: tenants.is_admin(first)))
    monkeypatch.setenv("DRAGOMAN_ADMIN_TOKEN", "adm_" + "1" * 64)
    assert main(["tenant", "rotate-admin", "--data", "d"]) == 1
    assert "the setting admin_token" in capsys.readouterr().err
    assert asyncio.run(on_tenants(folder, lambda tenants: tenants.is_admin(second)))
    audit = asyncio.run(on_tenants(folder, lambda tenants: tenants.audit()))
    (entry,) = [each for each in audit if each["action"] == "admin.rotate_token"]
    assert entry["actor"] == "cli"


@pytest.mark.parametrize(
    ("model", "environment", "missing"),
    [
        ("openai/gpt-x", {}, "OPENAI_API_KEY"),
        ("openai/gpt-x", {"OPENAI_API_KEY": "k"}, ""),
        ("openai/gpt-x", {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": ""}, "OPENAI_API_KEY"),
        ("anthropic/claude-x", {"OPENAI_API_KEY": "k"}, "ANTHROPIC_API_KEY"),
        ("ollama/llama", {}, ""),
        ("bedrock/x", {}, ""),
        ("nobody/knows", {}, ""),
        ("scripted:a/b.json", {}, ""),
        ("embedded:./x.gguf", {}, ""),
        ("echo", {}, ""),
        ("", {}, ""),
    ],
)
def test_the_key_that_is_missing_is_named(model: str, environment: dict[str, str], missing: str) -> None:
    assert find_missing_key(model, environment) == missing


def test_doctor_and_the_hub_say_that_a_key_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("any_llm")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    main(["doctor", "--model", "anthropic/claude-x", "--index-model", "openai/gpt-x"])
    said = capsys.readouterr().out
    assert "anthropic/claude-x needs a key in ANTHROPIC_API_KEY, which is not set" in said
    assert "openai/gpt-x needs" not in said
    with pytest.raises(SystemExit, match="no such file"):
        main(["hub", "--data", "d", "--model", "anthropic/claude-x", "--agents", "none.py"])
    assert "anthropic/claude-x needs a key in ANTHROPIC_API_KEY" in capsys.readouterr().err


def test_doctor_and_the_hub_say_that_a_variable_is_misspelled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAGOMAN_ADMIN_TOKN", "s3cret-s3cret-s3cret")
    for other in ("TOKEN", "URL", "MCP_TOKEN", "CONSOLE_TOKEN", "PUSH_SECRET", "SERVICE_HOST", "PORT_80_TCP"):
        monkeypatch.setenv(f"DRAGOMAN_{other}", "x")
    why = "the variable DRAGOMAN_ADMIN_TOKN is not read: did you mean DRAGOMAN_ADMIN_TOKEN?"
    main(["doctor", "--data", "d"])
    said = capsys.readouterr().out
    assert f"note   {why}" in said and said.count("is not read") == 1 and "s3cret" not in said
    with pytest.raises(SystemExit, match="no such file"):
        main(["hub", "--data", "d", "--agents", "none.py"])
    assert why in capsys.readouterr().err


def test_doctor_and_the_hub_say_that_a_provider_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("any_llm")
    why = "opanai/gpt-x has an unknown provider (did you mean 'openai'?)"
    main(["doctor", "--model", "opanai/gpt-x"])
    said = capsys.readouterr().out
    assert f"note   {why}" in said and "ok     the model" not in said
    with pytest.raises(SystemExit, match="no such file"):
        main(["hub", "--data", "d", "--model", "opanai/gpt-x", "--agents", "none.py"])
    assert why in capsys.readouterr().err


def test_doctor_and_the_hub_say_that_a_budget_in_money_lacks_the_price_of_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("any_llm")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    why = "openai/gpt-x has no price, and cost_per_day needs one"
    options = ["--model", "openai/gpt-x", "--cost-per-day", "5"]
    main(["doctor", *options])
    assert f"note   {why}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no such file"):
        main(["hub", "--data", "d", *options, "--agents", "none.py"])
    assert why in capsys.readouterr().err
    main(["doctor", *options, "--prices", "openai/*=1/2"])
    assert "has no price" not in capsys.readouterr().out


def test_doctor_and_the_hub_say_that_a_key_is_not_used_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for module in ("dragoman.cli.hub", "dragoman.cli.doctor", "dragoman.hub.settings"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    main(["doctor", "--data", "d"])
    assert (
        "note   OPENAI_API_KEY is set, and not used: pip install 'dragoman[llm]'" in capsys.readouterr().out
    )
    monkeypatch.setattr(
        "dragoman.server.runtime.run", lambda app, host, port, announce, **more: announce("URL")
    )
    main(["hub", "--data", "d"])
    said = capsys.readouterr().out
    assert "OPENAI_API_KEY is set, and needs pip install 'dragoman[llm]'" in said
    monkeypatch.delenv("OPENAI_API_KEY")
    main(["hub", "--data", "another"])
    assert "set a provider's key and pip install 'dragoman[llm]'" in capsys.readouterr().out


def test_a_file_of_the_embedded_model_that_does_not_exist_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "the file 'none.gguf' of the embedded model cannot be read: there is no such file"
    with pytest.raises(SystemExit, match=why):
        main(["hub", "--data", "d", "--model", "embedded:none.gguf"])
    assert main(["doctor", "--data", "d", "--model", "embedded:none.gguf"]) == 1
    assert f"WRONG  {why}" in capsys.readouterr().out


def test_the_embedded_model_that_is_not_installed_is_refused_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.hub.models.local.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=re.escape(INSTALL)):
        main(["hub", "--data", "d", "--model", "embedded"])


def test_doctor_names_the_alias_whose_model_will_fail(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("any_llm")
    main(["doctor", "--model-aliases", "fast=opanai/gpt-x"])
    assert "note   opanai/gpt-x has an unknown provider" in capsys.readouterr().out


def test_doctor_refuses_a_model_with_which_the_hub_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "gpt-4"]) == 1
    assert "WRONG  'gpt-4' is not a model: use provider/name, embedded or echo" in capsys.readouterr().out
    assert main(["doctor", "--model", "demo"]) == 0


def test_the_help_of_a_hub_has_every_setting_with_its_default_and_begins_with_the_address(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["hub", "--help"])
    shown = " ".join(capsys.readouterr().out.partition("\naddress:\n")[2].split())
    options = re.findall(r"--([a-z-]+)", shown)
    assert options[0] == "host"
    assert set(options) >= {name.replace("_", "-") for name in DEFAULTS}
    for default in ("8080", "~/.dragoman", "/exec /mcp /a2a /schedule /fetch?", "10000000", "30", "plain"):
        assert f"(default: {default})" in shown


def test_a_providers_key_chooses_its_model() -> None:
    pytest.importorskip("any_llm")
    assert load_settings(environment={"ANTHROPIC_API_KEY": "k"}).model.startswith("anthropic/")
    assert load_settings({"model": "echo"}, environment={"ANTHROPIC_API_KEY": "k"}).model == "echo"


def test_secrets_are_not_shown() -> None:
    given = Settings(
        admin_token="QQQQ0123456789", search_key="ZZZZab", metrics_token="JJJJ", push_seal="XXXX"
    )
    shown = str(given.describe())
    assert not any(letter in shown for letter in "QZJX"), "not even how it begins"
    assert given.describe()["admin_token"] == "(set)" and Settings().describe()["admin_token"] == ""


def test_init_names_the_folder_if_the_configuration_has_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--data", "one"]) == 0
    assert capsys.readouterr().out.endswith("next: dragoman hub\n")
    assert main(["init", "--data", "one"]) == 0
    assert capsys.readouterr().out.endswith("next: dragoman hub\n")
    assert main(["init", "--data", "the other"]) == 0
    assert capsys.readouterr().out.endswith("next: dragoman hub --data 'the other'\n")


def test_a_hub_is_begun_and_begun_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--data", "data"]) == 0
    first = capsys.readouterr().out
    assert "adm_" in first and "atr_" in first and (tmp_path / "dragoman.toml").is_file()
    assert main(["init", "--data", "data"]) == 0
    second = capsys.readouterr().out
    assert "adm_" not in second and "atr_" not in second
    assert "`dragoman tenant rotate NAME` replaces tokens that are lost" in second
    assert main(["doctor", "--model", "echo"]) == 0
    assert "1 tenant\n" in capsys.readouterr().out
    assert main(["doctor", "--model", "scripted:nowhere.json"]) == 1


@only_sqlite
@pytest.mark.parametrize("file", ["tasks.db", "hub.db"])
def test_a_hub_says_which_of_its_databases_is_none(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_bytes(b"these are not the bytes you are looking for" * 100)
    with pytest.raises(SystemExit, match=f"dragoman: the database {file} cannot be opened"):
        main(["hub", "--data", str(tmp_path), "--port", "0", "--model", "echo"])


def test_tenants_are_managed_in_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tenant", "add", "acme", "--data", "d"]) == 0
    token = capsys.readouterr().out.strip()
    assert token.startswith("atr_") and len(token) == 68
    assert main(["tenant", "add", "acme", "--data", "d"]) == 1
    assert main(["tenant", "rotate", "acme", "--data", "d"]) == 0
    assert capsys.readouterr().out.strip() != token
    assert main(["tenant", "disable", "1", "--data", "d"]) == 0
    assert main(["tenant", "list", "--data", "d"]) == 0
    assert "disabled" in capsys.readouterr().out
    assert main(["tenant", "enable", "nobody", "--data", "d"]) == 1


def test_the_doctor_names_every_file_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a2a_agents.json", "mcp_servers.json"):
        (tmp_path / name).write_text("[]")
    assert main(["doctor", "--model", "echo", "--data", "."]) == 1
    received = capsys.readouterr().out
    assert "WRONG  a2a_agents.json" in received and "WRONG  mcp_servers.json" in received


def test_a_port_for_grpc_that_is_taken_is_reported_in_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            SystemExit, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; give another"
        ):
            main(["hub", "--data", "d", "--port", "0", "--grpc-port", str(port), "--model", "echo"])


def test_the_doctor_knows_a_file_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").touch()
    assert main(["doctor", "--model", "echo", "--data", "d"]) == 1
    assert "WRONG  d is no folder" in capsys.readouterr().out


def test_the_doctor_says_how_commands_are_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = ["doctor", "--model", "echo", "--data", "d", "--allow-exec", "--exec-image", "img"]
    (tmp_path / "docker").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(image) == 0 and "commands run in containers of img" in capsys.readouterr().out
    (tmp_path / "docker").unlink()
    assert main(image) == 1 and "there is no docker" in capsys.readouterr().out
    assert main(image[:-2]) == 1 and "so /exec is refused" in capsys.readouterr().out
    assert main([*image[:-2], "--exec-unconfined"]) == 0
    assert "commands run with limits alone" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize(
    "words",
    [
        ["tenant", "list"],
        ["tenant", "disable", "x"],
        ["tenant", "enable", "x"],
        ["tenant", "rotate", "x"],
        ["tenant", "rotate-admin"],
        ["agent", "list", "--tenant", "x"],
    ],
    ids=lambda words: words[1],
)
def test_looking_for_tenants_where_there_is_no_hub_makes_none(
    words: list[str],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DRAGOMAN_STORE", raising=False)
    place, name = ["--data", "nowhere"], "nowhere"
    if kind == "postgresql":
        if not postgres.available():
            pytest.skip("PostgreSQL is not installed")
        place, name = [*place, "--store", postgres.server().database(f"none_{uuid4().hex}")], "this database"
    for _ in range(2):  # the first has made none
        assert main([*words, *place]) == 1
        assert f"there is no hub in {name}" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


async def test_a_misspelled_member_of_an_agent_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {
        **SCOUT,
        "temprature": 0,
        "advisor": {"model": "echo", "maxredirects": 1},
        "advisor_model": "echo",
    }
    (tmp_path / "scout.json").write_text(json.dumps(document))
    async with house() as hub, running(hub.app) as url:
        acme = await hub.tenant("acme")
        there = ["--url", url, "--token", acme.token]
        assert await asyncio.to_thread(main, ["agent", "apply", "scout.json", *there]) == 0
        applied = capsys.readouterr()
        assert "version 1" in applied.out
        assert applied.err.splitlines() == [
            "scout.json: 'advisor.maxredirects' is ignored, because agents have no such member; did you mean 'advisor.max_redirects'?",
            "scout.json: 'temprature' is ignored, because agents have no such member; did you mean 'temperature'?",
        ]
        assert await asyncio.to_thread(main, ["agent", "show", "scout", *there]) == 0
        (tmp_path / "scout.json").write_text(capsys.readouterr().out)
        assert await asyncio.to_thread(main, ["agent", "apply", "scout.json", *there]) == 0
        assert capsys.readouterr().err == ""


async def test_agents_are_managed_in_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scout.json").write_text(json.dumps(SCOUT))
    (tmp_path / "bad.json").write_text(json.dumps({**SCOUT, "id": "bad", "capabilities": ["/serach"]}))
    (tmp_path / "worse.json").write_text("{")
    async with house() as hub, running(hub.app) as url:
        acme = await hub.tenant("acme")
        there = ["--url", url, "--token", acme.token]
        run = lambda *words: asyncio.to_thread(main, ["agent", *words, *there])  # noqa: E731
        assert await run("apply", "scout.json") == 0
        assert await run("apply", "scout.json") == 0
        applied = capsys.readouterr()
        assert "version 2" in applied.out and applied.err == ""
        assert await run("apply", "scout.json", "bad.json") == 1
        said = capsys.readouterr().err
        assert "bad.json: " in said and "did you mean '/search'" in said
        assert await run("apply", "worse.json") == 1
        assert "worse.json is not JSON: " in capsys.readouterr().err
        assert await run("list") == 0
        assert "research-analyst" in capsys.readouterr().out
        assert await run("show", "scout") == 0
        assert json.loads(capsys.readouterr().out)["goal"] == "find things out"
        assert await run("delete", "scout") == 0
        assert await run("show", "scout") == 1


@pytest.mark.skipif(not postgres.available(), reason="PostgreSQL is not installed")
@pytest.mark.parametrize("where", ["folder", "postgresql"])
async def test_agents_are_changed_in_the_database_of_a_hub(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"--data={tmp_path}"
    if where == "postgresql":
        place = f"--store={postgres.server().database(f'agents_{uuid4().hex}')}"
    (tmp_path / "scout.json").write_text(json.dumps(SCOUT))
    there = [place, "--tenant", "acme"]
    run = lambda *words: asyncio.to_thread(main, list(words))  # noqa: E731
    assert await run("tenant", "add", "acme", place) == 0
    assert await run("agent", "apply", "scout.json", *there) == 0
    assert "scout  version 1" in capsys.readouterr().out
    assert await run("agent", "list", *there) == 0
    assert "research-analyst" in capsys.readouterr().out
    assert await run("agent", "show", "scout", *there) == 0
    assert json.loads(capsys.readouterr().out)["goal"] == SCOUT["goal"]
    assert await run("agent", "delete", "scout", *there) == 0
    for words in (["show", "scout", *there], ["list", place], ["list", place, "--tenant", "nobody"]):
        assert await run("agent", *words) == 1
        assert "there is no" in (said := capsys.readouterr().err) or "whose agents" in said
