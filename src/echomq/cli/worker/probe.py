"""Liveness and readiness over HTTP, from a thread of its own: it answers also where the event loop is held up."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

from echomq._redis.forks import remember
from echomq.cli.worker.state import ProcessState, not_alive, not_ready

_PATIENCE: Final = 5.0
"""Seconds that one who asks may take to do so."""


class Probe:
    """Answers ``GET /live`` and ``GET /ready``: 200 or 503, and JSON that says why.

    Args:
        host, port: where it listens; port 0 for any that is free.
        look: gives the state of the processes that there are. Called in its threads.
        wanted: how many processes there should be.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, look: Callable[[], Sequence[ProcessState]], wanted: int) -> None:
        class Handler(_Handler):
            answer = staticmethod(lambda path: _answer(path, look(), wanted))

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host, port), Handler)
        shown = f"[{host}]" if ":" in host else host
        self.url: str = f"http://{shown}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="echomq probe", daemon=True)
        remember(self)

    def descriptors(self) -> list[int]:
        """That of the socket at which it listens: a forked child would keep the port from the next worker."""
        return [self._server.fileno()]

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _answer(path: str, processes: Sequence[ProcessState], wanted: int) -> tuple[int, dict[str, Any]]:
    match path.partition("?")[0]:
        case "/live":
            reasons = not_alive(processes)
        case "/ready" | "/":
            reasons = not_ready(processes, wanted)
        case other:
            return 404, {"status": "unknown", "reasons": [f"{other}: ask for /live or /ready"]}
    return (
        503 if reasons else 200,
        {
            "status": "failing" if reasons else "ok",
            "reasons": reasons,
            "pid": os.getpid(),
            "processes": msgspec.to_builtins(processes),
        },
    )


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE
    server_version = "echomq"
    sys_version = ""
    answer: Callable[[str], tuple[int, dict[str, Any]]]

    def do_GET(self) -> None:
        """Answers a probe."""
        code, told = self.answer(self.path)
        body = msgspec.json.encode(told) + b"\n"
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """A probe every few seconds is nothing for the log."""
