"""`dragoman tasks AGENT` and `dragoman task get|list|subscribe|cancel|download|push-config AGENT ID`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from dragoman.cli import show
from dragoman.cli.arguments import CommandParser, add_command, add_flag, add_verbs, iso_time, secret
from dragoman.cli.connect import (
    EXIT_STATES,
    add_agent_options,
    add_fail,
    exit_code,
    parse_agent,
    run_with_agent,
)
from dragoman.client import Client
from dragoman.client.reply import answer_text
from dragoman.model.task import Task, TaskState

_STATES = [state.word for state in TaskState if state is not TaskState.UNSPECIFIED]

LIST_EPILOG = """\
  dragoman tasks http://127.0.0.1:8000
  dragoman tasks http://127.0.0.1:8000 --state working
  dragoman tasks http://127.0.0.1:8000 --since 2026-11-01T00:00:00Z -n 10 --json
"""


def register(commands: Any) -> None:
    _add_list(add_command(commands, "tasks", "list an agent's tasks, newest first", LIST_EPILOG, run_list))
    _register_task(commands)


def _add_list(parser: CommandParser) -> None:
    add_agent_options(parser)
    parser.add_argument("--state", default="", choices=_STATES, metavar="STATE", help=", ".join(_STATES))
    parser.add_argument("--context-id", default="", metavar="ID", help="only tasks of this conversation")
    parser.add_argument(
        "--since",
        type=iso_time,
        metavar="TIME",
        help="only tasks that changed after this time (ISO 8601)",
    )
    parser.add_argument(
        "-n", "--limit", type=_number, default=50, help="at most this number of tasks (default: 50)"
    )


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


async def run_list(args: argparse.Namespace) -> int:
    parse_agent(args)

    async def work(agent: Client) -> int:
        found: list[Task] = []
        size = min(args.limit, 100)
        listed = agent.list(
            context=args.context_id,
            state=args.state,
            since=args.since or "",
            history=1,
            artifacts=True,
            page_size=size,
        )
        async with aclosing(listed) as tasks:  # type: ignore[type-var]
            async for task in tasks:
                found.append(task)
                if len(found) >= args.limit:
                    break
        if args.json:
            show.json({"tasks": found})
        else:
            show.table(
                ("task", "state", "since", "about"),
                [(task.id, task.state.word, task.status.timestamp, _summarize(task)) for task in found],
            )
        return 0

    return await run_with_agent(args, work)


def _summarize(task: Task) -> str:
    """One line of a task's answer, or of its last message."""
    text = task.text or (task.history[-1].text if task.history else "")
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"


EPILOG = f"""\
  dragoman task get http://127.0.0.1:8000 ID
  dragoman task get http://127.0.0.1:8000 ID --wait          wait until it ends or asks for input
  dragoman task list http://127.0.0.1:8000 --state working
  dragoman task subscribe http://127.0.0.1:8000 ID           print its events until it ends or asks
  dragoman task cancel http://127.0.0.1:8000 ID
  dragoman task download http://127.0.0.1:8000 ID --save DIR
  dragoman task push-config list http://127.0.0.1:8000 ID

{EXIT_STATES}
"""


def _register_task(commands: Any) -> None:
    parser = add_command(
        commands, "task", "print, follow or cancel a task; save its files; list tasks", EPILOG
    )
    verbs = add_verbs(parser)
    one = _verb(verbs, "get", get, "print a task")
    one.add_argument("--history", type=int, metavar="N", help="with its last N messages (default: all)")
    add_flag(one, "--wait", "--watch", help="wait until it ends or asks for input")
    _verb(verbs, "cancel", cancel, "cancel a task")
    follow = _verb(verbs, "subscribe", subscribe, "print the events of a task until it ends")
    add_flag(follow, "--stream", help="print every event when it arrives")
    files = _verb(verbs, "download", download, "save the files of a task")
    files.add_argument("--save", type=Path, default=Path(), metavar="DIR", help="folder (default: this one)")
    _add_list(add_command(verbs, "list", "list tasks, newest first", run=run_list))
    configs = add_verbs(add_command(verbs, "push-config", "webhooks of a task"))
    made = _verb(configs, "create", create_push, "send push notifications of a task to a webhook", "url")
    made.add_argument(
        "--token", type=secret, default="", help="token in those notifications; env:NAME reads a variable"
    )
    made.add_argument("--config-id", default="", metavar="ID", help="id of the new config")
    _verb(configs, "list", list_push, "list the webhooks of a task")
    _verb(configs, "get", get_push, "print one webhook", "config")
    _verb(configs, "delete", delete_push, "delete a webhook", "config")


Work = Callable[[Client, argparse.Namespace], Awaitable[int]]


def _verb(verbs: Any, name: str, work: Work, about: str, *more: str) -> CommandParser:
    names = ("id", *(f"{each}_given" for each in more))

    async def run(args: argparse.Namespace) -> int:
        parse_agent(args, *names)
        return await run_with_agent(args, lambda agent: work(agent, args))

    aliases = ["watch"] if name == "subscribe" else []
    parser = add_command(verbs, name, about, run=run, aliases=aliases)
    add_agent_options(parser, "ID", *map(str.upper, more))
    add_fail(parser)
    return parser


async def get(agent: Client, args: argparse.Namespace) -> int:
    if args.wait:
        await agent.wait(args.id)
    return _print(await agent.get(args.id, history=args.history), args)


async def cancel(agent: Client, args: argparse.Namespace) -> int:
    await agent.cancel(args.id)
    args.fail = False
    return _print(await agent.get(args.id), args)


async def subscribe(agent: Client, args: argparse.Namespace) -> int:
    answer = show.Answer(args.output, streams=args.stream)
    stream = agent.subscribe(args.id)
    try:
        async with stream:
            async for piece in stream:
                answer.piece(piece)
                if piece.state.interrupted:
                    break
    finally:
        answer.end()
    if args.output is None:
        print(f"the task is {stream.reply.state.word}", file=sys.stderr)
    elif stream.task is not None and (answer.is_whole or args.output == "text"):
        return _print(stream.task, args)
    return exit_code(args, stream.reply.state)


async def download(agent: Client, args: argparse.Namespace) -> int:
    task = await agent.get(args.id)
    show.save_files(task.files, args.save)
    return exit_code(args, task.state)


async def create_push(agent: Client, args: argparse.Namespace) -> int:
    show.json(await agent.create_push(args.id, args.url_given, id=args.config_id, token=args.token))
    return 0


async def list_push(agent: Client, args: argparse.Namespace) -> int:
    configs = await agent.list_push(args.id)
    if args.output == "json":
        show.json({"configs": configs})
    else:
        show.table(("config", "url"), [(each.id, each.url) for each in configs])
    return 0


async def get_push(agent: Client, args: argparse.Namespace) -> int:
    show.json(await agent.get_push(args.id, args.config_given))
    return 0


async def delete_push(agent: Client, args: argparse.Namespace) -> int:
    await agent.delete_push(args.id, args.config_given)
    return 0


def _print(task: Task, args: argparse.Namespace) -> int:
    if args.json:
        show.json(task)
    elif args.output == "text":
        show.text_form(task)
    else:
        pairs = [
            ("task", task.id),
            ("context", task.context_id),
            ("state", task.state.word),
            ("since", task.status.timestamp),
            *((message.role.word, message.text) for message in task.history),
        ]
        show.fields([(name, value) for name, value in pairs if value])
        for artifact in task.artifacts:
            show.say(f"\n{artifact.name or artifact.artifact_id}:")
            if artifact.text:
                show.say(artifact.text)
            for part in artifact.parts:
                if line := show.describe_part(part):
                    show.say(line)
        if not task.artifacts and (text := answer_text(task)):
            show.say(f"\n{text}")
    return exit_code(args, task.state)
