"""Flask: an app that takes its server from the configuration, and whose tasks run in the application's context.

It needs ``pip install "echomq[flask]"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from echomq._worker.executors import is_async
from echomq.app import EchoMQ
from echomq.connection import Connection, Hub, _Embedded
from echomq.errors import InvalidOption
from echomq.job import Job
from echomq.options import shown
from echomq.worker import Call

try:
    from flask import Flask
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError('Flask is not installed: pip install "echomq[flask]"', name=_missing.name) from _missing

__all__ = ["FlaskEchoMQ"]

_TIMES: Final = ("call_timeout", "connect_timeout", "wait")


class FlaskEchoMQ(EchoMQ):
    """An app as a Flask extension: made where its tasks are, and given its server by ``init_app``.

    Its tasks run in the context of the Flask application, so that ``current_app`` and what other extensions keep there are at
    hand, and each job's context is torn down when it has ended; those with ``process=True`` do not. Views enqueue with
    ``task.sync.enqueue(…)``.

    Configuration, read by ``init_app``:

    * ``ECHOMQ_URL``: the server; left out, the environment variable of this name.
    * ``ECHOMQ_CALL_TIMEOUT``, ``ECHOMQ_CONNECT_TIMEOUT``, ``ECHOMQ_WAIT``: as of ``Connection``.

    Args:
        app: the Flask application; left out, ``init_app`` says it.
        connection: a ``Connection`` or a URL; then the configuration is not read. So can an application have several, of which
            ``app.extensions["echomq"]`` is the first.
        options: others of ``EchoMQ``, such as ``prefix``.

    Raises:
        InvalidOption: an option breaks a rule.

    Example:
        >>> jobs = FlaskEchoMQ()
        >>> @jobs.task(queue="mail")
        ... def welcome(learner: int) -> None: ...
        >>> def create_app():
        ...     app = Flask("school")
        ...     app.config["ECHOMQ_URL"] = "redis://localhost:6379/0"
        ...     jobs.init_app(app)
        ...     return app
    """

    def __init__(self, app: Flask | None = None, *, connection: Connection | str | None = None, **options: Any) -> None:
        given: object = app
        if given is not None and not isinstance(given, Flask):
            raise InvalidOption(f"FlaskEchoMQ({shown(given)}): must be a Flask application; a server is connection=…")
        self._later = _LaterConnection() if connection is None else None
        super().__init__(self._later or connection, **options)
        self._flask: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Takes the server from the configuration of a Flask application, and runs tasks in its context from now on.

        It may be called again, as by a factory that makes an application for each test: the latest counts.

        Raises:
            InvalidOption: the configuration names no server, or breaks a rule; or it names another one than that which is in
                use: close the app first, or make a ``FlaskEchoMQ`` for each server.
        """
        if self._later is not None:
            url = app.config.get("ECHOMQ_URL")
            times = {name: app.config[key] for name in _TIMES if (key := f"ECHOMQ_{name.upper()}") in app.config}
            self._later.be(Connection.of(url) if isinstance(url, Connection) else Connection(url, **times))
        self._flask = app
        app.extensions.setdefault("echomq", self)

    def _route(self, job: Job[Any]) -> Call:
        call = super()._route(job)
        if call.process:  # there the task makes an application of its own, if it needs one
            return call
        return msgspec.structs.replace(call, function=self._in_context(call.function))

    def _in_context(self, function: Callable[[], Any]) -> Callable[[], Any]:
        flask = self._flask
        if flask is None:
            raise InvalidOption(
                "the FlaskEchoMQ has no application to run tasks in: call init_app(app) where it is made"
            )
        if is_async(function):

            async def call_async() -> Any:
                with flask.app_context():
                    return await function()

            return call_async

        def call() -> Any:
            with flask.app_context():
                return function()

        return call


class _LaterConnection(Connection):
    """A connection to a server that is named later."""

    def __init__(self) -> None:
        self._is_known = False
        self._set_up(_Embedded("", "everysec"), 10.0, 5.0, 3.0)

    @property
    def where(self) -> str:
        return super().where if self._is_known else "the server that init_app will name"

    def be(self, other: Connection) -> None:
        """From now on it is a connection to where that one is."""
        settings = (other._call_timeout, other._connect_timeout, other._wait)
        if self._is_known and self.same_server(other):
            if settings == (self._call_timeout, self._connect_timeout, self._wait):
                return
        if any(not loop.is_closed() for loop in self._hubs):
            raise InvalidOption(
                f"init_app: this FlaskEchoMQ is in use with {self.where}, and this application's configuration says "
                f"{other.where}; call sync.close() first, or make a FlaskEchoMQ for each server"
            )
        self._portal.end()
        self._set_up(other._target, *settings)
        self._is_known = True

    def acquire(self) -> Hub:
        if not self._is_known:
            raise InvalidOption("no server was named yet: call init_app(app) of the FlaskEchoMQ before the first job")
        return super().acquire()
