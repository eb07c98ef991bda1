"""``echomq health``: asks a worker process how it does."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Annotated, Any, Final, NoReturn

import typer

from echomq.cli import _text
from echomq.cli._shell import MISUSE, REFUSED, seconds_option

_PATIENCE: Final = 5.0


def health(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="Where the worker answers, such as http://127.0.0.1:8080.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65_535, metavar="N", help="In place of URL: its port on this machine.", show_default=False
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Whether it lives, in place of whether it is ready.")] = False,
    timeout: Annotated[float, seconds_option("--timeout", help="What the answer may take; left out, 5 s.")] = _PATIENCE,
    as_json: Annotated[bool, typer.Option("--json", help="Print what it answers.")] = False,
) -> None:
    """Ask a worker that was started with --health-port how it does.

    Exit code 0: it is ready (with --live: it lives); 1: it is not, or does not answer; 2: wrong arguments.
    """
    if (url is None) == (port is None):
        _refuse("name the worker by its URL, or by --port", MISUSE)
    base = (url or f"http://127.0.0.1:{port}").rstrip("/")
    if not base.startswith("http://"):
        _refuse(f"{base}: must be a URL such as http://127.0.0.1:8080", MISUSE)
    code, told = _ask(f"{base}/{'live' if live else 'ready'}", timeout)
    if as_json:
        typer.echo(json.dumps(told))
    else:
        for line in _lines(told):
            typer.echo(_text.harmless(line))
    if code != 200:
        raise typer.Exit(REFUSED)


def _ask(url: str, timeout: float) -> tuple[int, dict[str, Any]]:
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy is no way to a worker
    try:
        with directly.open(url, timeout=timeout) as answer:
            code, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        code, body = error.code, error.read()
    except (TimeoutError, OSError, http.client.HTTPException, ValueError) as error:
        _refuse(f"{url} does not answer: {getattr(error, 'reason', error)}", REFUSED)
    try:
        told = json.loads(body)
        assert isinstance(told["reasons"], list)
        assert isinstance(told.get("processes", []), list)
    except (ValueError, RecursionError, KeyError, TypeError, AssertionError):
        _refuse(f"{url} answers ({code}), but is no worker of EchoMQ", REFUSED)
    return code, told


def _refuse(message: str, code: int) -> NoReturn:
    typer.echo(f"echomq health: {message}", err=True)
    raise typer.Exit(code)


def _lines(told: dict[str, Any]) -> list[str]:
    head = ["PID", "QUEUE", "WORKER", "RUNS", "LAG", "FETCHED"]
    rows = []
    for process in told.get("processes", []):
        for one in process["workers"]:
            fetched = "never" if one["since_fetch"] is None else f"{_text.duration(one['since_fetch'])} ago"
            runs = f"{one['running']}/{one['slots']}" + (" (paused)" if one["paused"] else "")
            rows.append(
                [str(process["pid"]), one["queue"], one["name"], runs, _text.duration(one["loop_lag"]), fetched]
            )
    return [told["status"], *told["reasons"], *(_text.table(head, rows, right=(3,)) if rows else [])]
