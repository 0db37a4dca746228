"""`dragoman bridge URL`, `dragoman bridge FILE.toml`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dragoman.cli.arguments import add_command, exit_on, number, positive_number
from dragoman.cli.serve import add_server_options, read_server_options

EPILOG = """\
The agent at URL can be called here in every version and binding of A2A, whichever it speaks itself.

Mode durable (the default) keeps a task here for each task of the agent. So a stream can be resumed after its last event, a
repeated message runs once, tasks can be listed, webhooks are called again until they answer, and both sides may be restarted.
Mode pass keeps nothing: tasks and ids are the agent's, and only versions and bindings are translated.

FILE.toml has many agents, each with its path, credentials, callers and limits:

  [auth]
  tokens = "tokens.json"

  [agents.crew]
  url = "http://crew:9000"
  credentials = "env:CREW_TOKEN"

  dragoman bridge http://crew:9000
  dragoman bridge http://crew:9000 --mode pass --port 9001
  dragoman bridge https://crew.example.com --credentials env:CREW_TOKEN
  dragoman bridge http://crew:9000 --tokens tokens.json --host 0.0.0.0      callers need a token
  dragoman bridge bridge.toml --store postgresql://db.example.com/tasks
"""


_AGENT_OPTIONS = (
    "mode", "credentials", "certificate", "signed_by", "version", "wait", "stalled", "allow_private", "shared_tasks", "versions",
)  # fmt: skip
"""Options with the names that `make_one_route` has for them."""


def register(commands: Any) -> None:
    parser = add_command(
        commands,
        "bridge",
        "serve agents that are elsewhere, in every version of A2A, with their tasks kept here",
        EPILOG,
        run,
    )
    parser.add_argument("target", metavar="URL|FILE.toml", help="the URL of an agent, or a file with many")
    agent = parser.add_argument_group("the agent at URL", "a file has its own settings for each agent")
    agent.add_argument(
        "--mode",
        choices=("durable", "pass"),
        help="durable: keep a task here for each of its tasks; pass: keep nothing (default: durable)",
    )
    agent.add_argument(
        "--credentials",
        metavar="SECRET",
        help="what it asks for: a token or a key, NAME:PASSWORD, or env:VARIABLE",
    )
    agent.add_argument(
        "--certificate", metavar="FILE", help="client certificate for it, and its key, in one PEM file"
    )
    agent.add_argument(
        "--signed-by", metavar="KEYS", help="file or URL with the keys that must have signed its card"
    )
    agent.add_argument(
        "--upstream-version",
        dest="version",
        metavar="VERSION",
        help="call it in this version of A2A only, such as 0.3",
    )
    agent.add_argument(
        "--wait",
        type=positive_number,
        metavar="SECONDS",
        help="how long a task waits for it while it is away (default: 300)",
    )
    agent.add_argument(
        "--stalled",
        type=number,
        metavar="SECONDS",
        help="how long a task is believed to be at work there, if nobody seems to work on it; 0: for ever (default: 900)",
    )
    agent.add_argument(
        "--allow-private",
        action="store_true",
        default=None,
        help="its card may name addresses that are not public, other than its own",
    )
    callers = parser.add_argument_group("callers of the agent at URL")
    callers.add_argument("--tokens", metavar="FILE", help="JSON file with the hashes of callers' tokens")
    callers.add_argument("--oidc", metavar="URL", help="accept tokens of this OpenID Connect issuer")
    callers.add_argument("--audience", metavar="NAME", help="for whom tokens of --oidc must be")
    callers.add_argument(
        "--versions",
        type=lambda text: [each.strip() for each in text.split(",")],
        metavar="LIST",
        help="versions to offer, such as 1.0,0.3 (default: all)",
    )
    callers.add_argument(
        "--shared-tasks",
        action="store_true",
        default=None,
        help="in mode pass: let callers see each other's tasks, because the agent cannot tell them apart",
    )
    add_server_options(parser)


def run(args: argparse.Namespace) -> int:
    from dragoman.bridge.application import make_bridge
    from dragoman.bridge.settings import InvalidBridge, make_one_route, read_bridge
    from dragoman.observe.logs import configure
    from dragoman.server.runtime import serve

    configure(args.log_level, lines=args.log)
    with exit_on(InvalidBridge):
        given = _read_agent_options(args)
        if "://" not in args.target and not args.target.endswith(".toml") and not Path(args.target).exists():
            raise InvalidBridge(
                f"{args.target!r} is neither a URL nor a file: the URL of an agent begins with http:// or https://"
            )
        if "://" in args.target:
            settings = make_one_route(args.target, **given)
        elif given:
            option = next(iter(given)).replace("_", "-")
            raise InvalidBridge(f"--{option} is for one URL: write it into {args.target}")
        else:
            settings = read_bridge(args.target)
        bridge = make_bridge(settings)
    options = read_server_options(args)
    options["bridged"] = bridge.bridged
    serve(*bridge.agents, **options)
    return 0


def _read_agent_options(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of the one agent that options give."""
    if bool(args.oidc) != bool(args.audience):
        raise SystemExit("dragoman: --oidc and --audience belong together")
    given = {name: value for name in _AGENT_OPTIONS if (value := getattr(args, name)) is not None}
    auth: dict[str, Any] = {}
    if args.tokens:
        auth["tokens"] = args.tokens
    if args.oidc:
        auth["oidc"] = {"url": args.oidc, "audience": args.audience}
    if auth:
        given["auth"] = auth
    return given
