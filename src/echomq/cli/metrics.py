"""``echomq metrics``: queues for Prometheus, over HTTP."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, Final

import typer

from echomq import Connection, EchoMQError
from echomq.cli._shell import MISUSE, REFUSED, HashTag, Prefix, Url
from echomq.metrics import QueueCollector

_PATIENCE: Final = 0.5
"""Seconds: the next scrape tries again."""


def metrics(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="Queues to show; left out, all of the prefix.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, metavar="N", help="The port; 0 for any that is free.")] = 9464,
    url: Url = None,
    prefix: Prefix = "emq",
    hash_tag: HashTag = None,
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
        raise typer.Exit(REFUSED) from error
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
        raise typer.Exit(MISUSE) from error
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        served, thread = start_http_server(port, host, registry)
    except OSError as error:
        typer.echo(f"echomq metrics: cannot listen at {host}, port {port}: {error}; choose another --port", err=True)
        raise typer.Exit(REFUSED) from error
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"http://{shown}:{served.server_port}/metrics")
    stop.wait()
    served.shutdown()
    served.server_close()
    thread.join()
    collector.close()
