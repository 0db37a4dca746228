"""`dragoman task get|watch|cancel AGENT ID`"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dragoman.cli import show
from dragoman.cli.reach import EXIT_STATES, add_options, exit_code, reached
from dragoman.client import Client
from dragoman.client.reply import text_of
from dragoman.model.task import Task

EPILOG = f"""\
  dragoman task get http://127.0.0.1:8000 ID
  dragoman task watch http://127.0.0.1:8000 ID         follow it until it is over, or asks
  dragoman task cancel http://127.0.0.1:8000 ID

{EXIT_STATES}
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "task",
        help="look at a task, follow it or cancel it",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="get|watch|cancel", required=True)
    for name, work, about in (
        ("get", get, "print a task"),
        ("watch", watch, "print what happens to a task until it is over"),
        ("cancel", cancel, "cancel a task"),
    ):
        verb = verbs.add_parser(name, help=about)
        add_options(verb)
        verb.add_argument("id", help="the task's id")
        verb.set_defaults(run=lambda args, work=work: reached(args, lambda agent: work(agent, args)))


async def get(agent: Client, args: argparse.Namespace) -> int:
    return _print(await agent.get(args.id), args)


async def cancel(agent: Client, args: argparse.Namespace) -> int:
    await agent.cancel(args.id)
    task = await agent.get(args.id)
    _print(task, args)
    return 0


async def watch(agent: Client, args: argparse.Namespace) -> int:
    answer = show.Answer()
    stream = agent.subscribe(args.id)
    try:
        async with stream:
            async for piece in stream:
                if args.json:
                    show.event(piece)
                else:
                    answer.piece(piece)
                if piece.state.interrupted:
                    break
    finally:
        answer.end()
    if not args.json:
        print(f"the task is {stream.reply.state.word}", file=sys.stderr)
    return exit_code(stream.reply.state)


def _print(task: Task, args: argparse.Namespace) -> int:
    if args.json:
        show.json(task)
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
                if line := show.described(part):
                    show.say(line)
        if not task.artifacts and (said := text_of(task)):
            show.say(f"\n{said}")
    return exit_code(task.state)
