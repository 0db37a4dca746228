"""`dragoman send AGENT TEXT`"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from dragoman.cli import show
from dragoman.cli.reach import EXIT_STATES, add_options, exit_code, intermixed, reached
from dragoman.cli.secret import secret
from dragoman.client import Client, Reply, Stream, file
from dragoman.client.reply import ended
from dragoman.model.ops import PushConfig
from dragoman.model.task import Task

EPILOG = f"""\
  dragoman send http://127.0.0.1:8000 "how much is 10 USD in INR?"
  echo "summarise this" | dragoman send http://127.0.0.1:8000 - -f report.pdf
  dragoman send http://127.0.0.1:8000 --task ID "in GBP"         answer a question

{EXIT_STATES}
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "send",
        help="send a message and print what comes back",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("text", nargs="*", help="the message; - reads it from standard input")
    parser.add_argument("-f", "--file", action="append", default=[], help="a file (or its URL) to send along")
    parser.add_argument("--data", action="append", default=[], metavar="JSON", help="data to send along")
    parser.add_argument("--skill", default="", help="the skill that is meant")
    parser.add_argument("--task", default="", metavar="ID", help="go on with this task")
    parser.add_argument("--context", default="", metavar="ID", help="go on with this conversation")
    parser.add_argument("--key", default="", help="idempotency key: the same send, repeated, is done once")
    parser.add_argument(
        "--push", default="", metavar="URL", help="have news of the task sent to this webhook"
    )
    parser.add_argument(
        "--push-token",
        type=secret,
        default="",
        metavar="TOKEN",
        help="which it knows them by; env:NAME reads a variable",
    )
    parser.add_argument("--no-wait", action="store_true", help="print the task's id and leave")
    parser.add_argument("--no-stream", action="store_true", help="print the answer when it is complete")
    parser.add_argument("--events", action="store_true", help="print every event as a line of JSON")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="save the files of the answer here")
    parser.set_defaults(run=run)
    intermixed(parser)


async def run(args: argparse.Namespace) -> int:
    """Exit 0 when the task completed, 2 when it wants input, 1 otherwise."""
    try:
        content, more = message(args)
    except (OSError, ValueError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 1

    async def work(agent: Client) -> int:
        if args.no_wait:
            return _left(await agent.send(*content, wait=False, **more), args)
        if args.no_stream:
            return _finish(await (await agent.send(*content, **more)).wait(), args, printed=False)
        return await _streamed(agent.stream(*content, **more), args)

    return await reached(args, work)


def message(args: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    """What to send, as `Client.send` takes it."""
    text = " ".join(args.text)
    if text == "-" or not (text or args.file or args.data):
        text = sys.stdin.read().strip()
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError("standard input is not text in UTF-8: -f sends any file as it is")
    content: list[Any] = [text] if text else []
    content += [file(each) for each in args.file]
    content += [msgspec.json.decode(each.encode()) for each in args.data]
    if not content:
        raise ValueError("there is nothing to send: give some text, a file or data")
    more = {"skill": args.skill, "task": args.task, "context": args.context, "key": args.key}
    if args.push:
        more["push"] = PushConfig(url=args.push, token=args.push_token)
    return content, more


async def _streamed(stream: Stream, args: argparse.Namespace) -> int:
    answer = show.Answer()
    try:
        async with stream:
            async for piece in stream:
                if args.events:
                    show.event(piece)
                elif args.json:
                    answer.progress.say(piece.status)
                else:
                    answer.piece(piece)
    except asyncio.CancelledError:  # Ctrl-C
        answer.end()
        if stream.task is not None and not stream.task.state.over:
            show.say(
                f"the task goes on: dragoman task watch {args.url} {shlex.quote(stream.task.id)}", sys.stderr
            )
        raise
    finally:
        answer.end()
    return _finish(stream.reply, args, printed=True)


def _finish(reply: Reply, args: argparse.Namespace, *, printed: bool) -> int:
    if args.json and not args.events:
        show.json({"task": reply.task} if reply.task is not None else {"message": reply.message})
    elif not printed:
        show.say(reply)
        for part in reply.files:
            show.say(show.described(part))
    if args.output is not None:
        _save(reply, args.output)
    if reply.asks:
        show.say(f'to answer: dragoman send {args.url} --task {shlex.quote(reply.id)} "..."', sys.stderr)
    elif isinstance(reply.task, Task) and exit_code(reply.state):
        print(f"the task {ended(reply.state)}", file=sys.stderr)
    return exit_code(reply.state)


def _left(reply: Reply, args: argparse.Namespace) -> int:
    if args.json:
        show.json({"task": reply.task} if reply.task is not None else {"message": reply.message})
    else:
        show.say(reply.id or reply)
    return 0


def _save(reply: Reply, directory: Path) -> None:
    """Files go where we were told, whatever their names say, and replace none that is there."""
    directory.mkdir(parents=True, exist_ok=True)
    for n, part in enumerate(reply.files, 1):
        if part.raw is not None:
            path = _written(directory, _plain(part.filename) or f"file-{n}", part.raw)
            print(f"saved {path}", file=sys.stderr)


def _written(directory: Path, name: str, content: bytes) -> Path:
    """The file, under the first name that is free: `a.txt`, `a-2.txt`, `a-3.txt` ..."""
    path, n = directory / name, 1
    while True:
        try:
            with path.open("xb") as new:
                new.write(content)
            return path
        except FileExistsError:
            n += 1
            path = directory / f"{Path(name).stem}-{n}{Path(name).suffix}"


def _plain(filename: str) -> str:
    """The last piece of what an agent calls a file, if that is a name: it leads nowhere, hides nothing, and fits."""
    name = Path(filename.replace("\\", "/")).name
    return (
        name if name.isprintable() and not name.startswith((".", "-")) and len(name.encode()) <= 255 else ""
    )
