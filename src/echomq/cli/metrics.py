"""``echomq metrics``: queues for Prometheus, over HTTP."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, Final

import typer

from echomq import Connection, EchoMQError
from echomq.metrics import QueueCollector

_MISUSE: Final = 2
_PATIENCE: Final = 0.5
"""Seconds: the next scrape tries again."""


def metrics(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUEUE]...", help="Queues to show; left out, all of the prefix.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, metavar="N", help="The port; 0 for any that is free.")] = 9464,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server; left out, ECHOMQ_URL.", show_default=False)
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="What the keys begin with; bull for queues of BullMQ.")
    ] = "emq",
    hash_tag: Annotated[
        bool | None,
        typer.Option(
            "--hash-tag/--no-hash-tag",
            help="Whether queue names stand in braces in the keys. Left out: yes, except with the prefix bull.",
            show_default=False,
        ),
    ] = None,
    max_queues: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Show at most so many, where none is named.")
    ] = 100,
) -> None:
    """Serve queues to Prometheus, until SIGTERM or SIGINT (Ctrl-C).

    At http://HOST:PORT/metrics. Each scrape reads the server anew. While the server is away, echomq_up is 0.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError as error:
        typer.echo("echomq metrics: prometheus_client is not installed: pip install 'echomq[metrics]'", err=True)
        raise typer.Exit(1) from error
    try:
        collector = QueueCollector(
            *(queues or ()),
            connection=Connection(url, wait=_PATIENCE),
            prefix=prefix,
            hash_tag=hash_tag,
            max_queues=max_queues,
        )
    except EchoMQError as error:
        typer.echo(f"echomq metrics: {error}", err=True)
        raise typer.Exit(_MISUSE) from error
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        served, thread = start_http_server(port, host, registry)
    except OSError as error:
        typer.echo(f"echomq metrics: cannot listen at {host}, port {port}: {error}; choose another --port", err=True)
        raise typer.Exit(1) from error
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"http://{shown}:{served.server_port}/metrics")
    stop.wait()
    served.shutdown()
    served.server_close()
    thread.join()
    collector.close()
