"""`dragoman send AGENT TEXT`"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.cli import show
from dragoman.cli.arguments import add_command, add_flag, describe, secret
from dragoman.cli.connect import (
    EXIT_STATES,
    add_agent_options,
    add_fail,
    exit_code,
    parse_agent,
    report_error,
    run_with_agent,
)
from dragoman.client import Client, Reply, Stream, file
from dragoman.client.content import to_part
from dragoman.client.reply import describe_end
from dragoman.client.transport.transport import NOT_JSON
from dragoman.model.content import Part
from dragoman.model.ops import PushConfig
from dragoman.model.task import Task

EPILOG = f"""\
  dragoman send http://127.0.0.1:8000 "how much is 10 USD in INR?"
  echo "summarise this" | dragoman send http://127.0.0.1:8000 - -f report.pdf
  dragoman send http://127.0.0.1:8000 --task-id ID "in GBP"      answer the agent's question
  dragoman send http://127.0.0.1:8000 hello -o json              the task as A2A 1.0 JSON
  dragoman send http://127.0.0.1:8000 hello -o json --stream     every event as a line of JSON

{EXIT_STATES}
"""


def register(commands: Any) -> None:
    parser = add_command(commands, "send", "send a message and print the answer", EPILOG, run)
    add_agent_options(parser, "TEXT")
    add_fail(parser)
    parts = parser.add_argument_group(
        "the message", "TEXT, or - for standard input; then these parts, in the order given:"
    )
    parts.set_defaults(parts=[])
    parts.add_argument("--text", action=_AddPart, metavar="TEXT", help="a text")
    parts.add_argument("-f", "--file", action=_AddPart, metavar="FILE", help="a file, or its URL")
    parts.add_argument("--data", action=_AddPart, metavar="JSON", help="data: JSON, a file with it, or -")
    parts.add_argument(
        "--media-type",
        action=_SetMediaType,
        metavar="TYPE",
        help="media type of the text, file or data before this option",
    )
    parser.add_argument(
        "--metadata", default="", metavar="JSON", help="metadata of the message: a JSON object"
    )
    parser.add_argument("--skill", default="", help="the skill to use")
    parser.add_argument("--task-id", default="", metavar="ID", help="continue this task")
    parser.add_argument("--context-id", default="", metavar="ID", help="continue this conversation")
    parser.add_argument(
        "--key", default="", help="idempotency key: a repeated send with the same key runs once"
    )
    parser.add_argument(
        "--push", default="", metavar="URL", help="send push notifications of the task to this webhook"
    )
    parser.add_argument(
        "--push-token",
        type=secret,
        default="",
        metavar="TOKEN",
        help="token in those notifications; env:NAME reads a variable",
    )
    how = parser.add_mutually_exclusive_group()
    add_flag(how, "--wait", help="wait until the task ends or asks for input (default)")
    how.add_argument(
        "--async",
        "--no-wait",
        "--return-immediately",
        dest="leave",
        action="store_true",
        help="print the task's id and do not wait",
    )
    add_flag(how, "--stream", help="print every event when it arrives")
    add_flag(how, "--no-stream", help="do not stream: get the answer in one response")
    add_flag(parser, "--verbose", help="print the ids of task and conversation as well")
    parser.add_argument(
        "--save", type=Path, metavar="DIR", help="save the files of the answer in this folder"
    )


class _AddPart(argparse.Action):
    def __call__(self, parser: Any, args: Any, value: Any, option: str | None = None) -> None:
        args.parts = [*args.parts, (self.dest, value, "")]


class _SetMediaType(argparse.Action):
    def __call__(self, parser: Any, args: Any, value: Any, option: str | None = None) -> None:
        if not args.parts:
            parser.error("--media-type comes after --text, --file or --data")
        kind, content, _ = args.parts[-1]
        args.parts = [*args.parts[:-1], (kind, content, value)]


async def run(args: argparse.Namespace) -> int:
    try:
        parse_agent(args, rest="text_words")
        content, more = build_message(args)
    except OSError as error:
        return report_error(ValueError(describe(error)), args)
    except ValueError as error:
        return report_error(error, args)

    async def work(agent: Client) -> int:
        if args.leave:
            return _print_started(await agent.send(*content, wait=False, **more), args)
        if args.no_stream:
            return _finish(await (await agent.send(*content, **more)).wait(), args, printed=False)
        return await _print_stream(agent.stream(*content, **more), args)

    return await run_with_agent(args, work)


def build_message(args: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    """Build the arguments of `Client.send`."""
    text = " ".join(args.text_words)
    if text == "-" or not (text or args.parts):
        text = _standard_input()
    content: list[Any] = [text] if text else []
    content += [_part(*each) for each in args.parts]
    if not content:
        raise ValueError("there is nothing to send: add text, a file or data")
    more = {"skill": args.skill, "task": args.task_id, "context": args.context_id, "key": args.key}
    if args.metadata:
        with _about("--metadata is not a JSON object"):
            more["metadata"] = msgspec.json.decode(args.metadata.encode(), type=dict[str, Any])
    if args.push:
        more["push"] = PushConfig(url=args.push, token=args.push_token)
    return content, more


def _standard_input() -> str:
    if sys.stdin.isatty():
        show.say("Type the message, and end it with Ctrl-D.", sys.stderr)
    text = sys.stdin.read().strip()
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("standard input is not UTF-8 text: use -f to send a file as it is")
    return text


def _part(kind: str, value: str, media_type: str) -> Any:
    if kind == "data":
        is_file = value != "-" and _is_file(value)
        text = (
            Path(value).read_bytes() if is_file else (_standard_input() if value == "-" else value).encode()
        )
        with _about(f"{value} is not JSON" if is_file else "--data is neither JSON nor a file"):
            part = Part(data=msgspec.json.decode(text), media_type="application/json")
    else:
        part = file(value) if kind == "file" else to_part(value)
    return replace(part, media_type=media_type) if media_type else part


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Say which option is wrong."""
    try:
        yield
    except NOT_JSON as error:
        raise ValueError(f"{what}: {error}") from None


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except (OSError, ValueError):  # too long for a name
        return False


async def _print_stream(stream: Stream, args: argparse.Namespace) -> int:
    answer = show.Answer(args.output, streams=args.stream)
    try:
        async with stream:
            async for piece in stream:
                answer.piece(piece)
    except asyncio.CancelledError:  # Ctrl-C
        answer.end()
        if stream.task is not None and not stream.task.state.settled:
            watch = f"dragoman task subscribe {args.url} {shlex.quote(stream.task.id)}"
            show.say(f"the task continues: {watch}", sys.stderr)
        raise
    finally:
        answer.end()
    return _finish(stream.reply, args, printed=not answer.is_whole)


def _finish(reply: Reply, args: argparse.Namespace, *, printed: bool) -> int:
    result = reply.task or reply.message
    assert result is not None
    if args.json and not printed:
        show.response(result)
    elif args.output == "text":
        show.text_form(result, content=not printed)
    elif not args.json:
        if not printed:
            show.say(reply)
            for part in reply.files:
                show.say(show.describe_part(part))
        if args.verbose:
            show.identifiers(result, sys.stderr)
    if args.save is not None:
        show.save_files(reply.files, args.save)
    if reply.asks:
        show.say(f'to answer: dragoman send {args.url} --task-id {shlex.quote(reply.id)} "..."', sys.stderr)
    elif isinstance(reply.task, Task) and reply.state.word != "completed":
        show.say(f"task {reply.id} {describe_end(reply.state)}", sys.stderr)
    return exit_code(args, reply.state)


def _print_started(reply: Reply, args: argparse.Namespace) -> int:
    result = reply.task or reply.message
    assert result is not None
    if args.json:
        show.response(result)
    elif args.output == "text":
        show.text_form(result)
    else:
        show.say(reply.id or reply)
    return 0
