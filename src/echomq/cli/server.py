"""``echomq server``: look at, start and stop the embedded server."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from echomq._redis import embedded
from echomq.cli._shell import MISUSE, REFUSED
from echomq.errors import EchoMQError, InvalidOption

app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at, start and stop the embedded server (embedded://NAME).",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The server's name, as in embedded://NAME.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class FsyncChoice(StrEnum):
    """How often written data is forced to disk."""

    everysec = "everysec"
    always = "always"


@app.command()
def start(
    name: Name = "default",
    fsync: Annotated[
        FsyncChoice | None,
        typer.Option(
            help="How often written data is forced to disk; left out, everysec. A server that has `always` keeps it.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the server and keep it running without users.

    It runs until `echomq server stop` or the end of the machine.
    """
    try:
        now = embedded.start(name, fsync="everysec" if fsync is None else fsync.value)
    except EchoMQError as error:
        raise _failure("start", error) from error
    _print(now, as_json=as_json)
    if fsync is not None and now.fsync != fsync.value:
        typer.echo(f"{name}: keeps fsync {now.fsync}, which somebody asked for: the stricter wish counts", err=True)


@app.command()
def status(name: Name = "default", as_json: AsJson = False) -> None:
    """Say whether the server runs, and how it does. Exit code 3 if it does not run."""
    try:
        now = embedded.status(name)
    except EchoMQError as error:
        raise _failure("status", error) from error
    _print(now, as_json=as_json)
    if not now.running:
        raise typer.Exit(3)


@app.command("list")
def list_servers(as_json: AsJson = False) -> None:
    """List this user's servers, and where each is."""
    try:
        servers = [embedded.status(name) for name in embedded.names()]
    except EchoMQError as error:
        raise _failure("list", error) from error
    if as_json:
        typer.echo(msgspec.json.encode({"servers": servers}).decode())
    elif not servers:
        typer.echo(
            "there is no embedded server yet; the first is made when an app or a command uses embedded://NAME", err=True
        )
    for now in () if as_json else servers:
        typer.echo(f"embedded://{now.name:<20} {'running' if now.running else 'not running':<12} {now.path}")


@app.command()
def stop(
    name: Name = "default",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Stop it although processes use it. One that goes on working, as a worker does, starts it again.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the server. Its data stays. Exit code 1: processes use it, and it runs on."""
    try:
        users = embedded.status(name).users or []
        ending = embedded.stop(name, force=force)
        if ending == "in use":
            users = embedded.status(name).users or []
    except EchoMQError as error:
        raise _failure("stop", error) from error
    if as_json:
        typer.echo(msgspec.json.encode({"name": name, "ending": ending, "users": users}).decode())
    else:
        _tell(name, ending, users)
    if ending == "in use":
        raise typer.Exit(1)


def _tell(name: str, ending: embedded.Ending, users: list[int]) -> None:
    by = f"in use by {'process' if len(users) == 1 else 'processes'} {', '.join(map(str, users))}"
    if ending == "in use":
        them = "it" if len(users) == 1 else "them"
        typer.echo(f"{name}: not stopped, {by if users else 'processes use it'}; end {them}, or use --force", err=True)
    elif ending == "stopped" and users:
        typer.echo(f"{name}: stopped; it was {by}, and one that goes on working starts it again")
    else:
        typer.echo(f"{name}: {ending}")


@app.command()
def path(name: Name = "default", as_json: AsJson = False) -> None:
    """Print the server's data folder, which need not exist yet."""
    try:
        folder = str(embedded.data_folder(name))
    except EchoMQError as error:
        raise _failure("path", error) from error
    typer.echo(msgspec.json.encode({"name": name, "path": folder}).decode() if as_json else folder)


def _failure(command: str, error: EchoMQError) -> typer.Exit:
    typer.echo(f"echomq server {command}: {error}", err=True)
    return typer.Exit(MISUSE if isinstance(error, InvalidOption) else REFUSED)


def _print(now: embedded.Status, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(now).decode())
        return
    for label, value in _lines(now):
        typer.echo(f"{label:<9} {value}")


def _lines(now: embedded.Status) -> list[tuple[str, str]]:
    if not now.running:
        written = f", written by {now.kind} {now.version}" if now.kind else ", none yet"
        return [("server", f"{now.name}: not running"), ("data", now.path + written)]
    memory = "unknown" if now.memory is None else f"{now.memory / 2**20:.1f} MiB"
    uptime = "unknown" if now.uptime is None else f"{now.uptime} s"
    return [
        ("server", f"{now.name}: {now.kind} {now.version}, {now.state}, pid {now.pid}"),
        ("url", str(now.url)),
        ("data", now.path),
        ("file", _file(now)),
        ("users", _users(now)),
        (
            "keeper",
            "none (the next process that joins starts one)" if now.keeper_pid is None else f"pid {now.keeper_pid}",
        ),
        ("uptime", uptime),
        ("memory", memory),
    ]


def _file(now: embedded.Status) -> str:
    size = "size unknown" if now.aof_size is None else f"{now.aof_size / 2**20:.1f} MiB"
    trouble = ", the last write FAILED (is the disk full?)" if now.aof_ok is False else ""
    return f"append-only, {size}, fsync {now.fsync}{trouble}"


def _users(now: embedded.Status) -> str:
    kept = "; runs without users until it is stopped" if now.kept else ""
    if not now.in_use:
        return "none" + kept
    if not now.users:
        return "at least one process" + kept
    return f"{len(now.users)} (pid {', '.join(map(str, now.users))})" + kept
