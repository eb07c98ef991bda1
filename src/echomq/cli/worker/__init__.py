"""``echomq worker``: works the queues of an app, in one process or several."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from echomq import Backoff, Worker
from echomq.cli._logs import LogFormat, log_to_stderr
from echomq.cli._loop import run_in_loop
from echomq.cli._shell import seconds_option
from echomq.cli.worker.announce import Announcer, let_no_stream_decide
from echomq.cli.worker.parent import Parent
from echomq.cli.worker.probe import Probe
from echomq.cli.worker.process import Process
from echomq.cli.worker.reload import changes
from echomq.cli.worker.state import ProcessState
from echomq.cli.worker.supervisor import Supervisor
from echomq.cli.worker.target import (
    CONCURRENCY,
    SHUTDOWN_TIMEOUT,
    check_form,
    check_server,
    load,
    refuse,
    retry_policy,
    shared,
    workers_of,
)


def _elsewhere(option: str, remedy: str) -> Any:
    """An option that another library's worker has: says what it is called here."""

    def tell(given: str | None) -> None:
        if given is not None:
            refuse(f"there is no option {option}; {remedy.format(given)}")

    return typer.Option(option, hidden=True, is_eager=True, callback=tell)


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Where the app is: package.module:name. An EchoMQ, or a Worker, which has its own queue, concurrency and "
            "shutdown_timeout, and whatever else a Worker can be given.",
        ),
    ],
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="Queues to work; left out, those that its tasks name."),
    ] = None,
    shares: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="NAME[=WEIGHT]",
            help="In place of QUEUE: queues that share the slots of a process by weight; left out, 1. Once for each queue.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Queues of -q in strict order: one gets what those before it leave.")
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help=f"Jobs at once, for each queue and process, or with -q for all queues of a process; left out, {CONCURRENCY}.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Worker processes.")] = 1,
    metrics_points: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100_000,
            metavar="MINUTES",
            help="Keep counts of the jobs that end in each of the last minutes; left out, none.",
            show_default=False,
        ),
    ] = None,
    shutdown_timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help=f"What running jobs get to finish; left out, {SHUTDOWN_TIMEOUT:g}.",
            show_default=False,
        ),
    ] = None,
    retry: Annotated[
        str | None,
        typer.Option(
            "--retry-policy",
            metavar="POLICY",
            help="Which errors are worth another attempt, for tasks that do not say: default, always, or where a RetryPolicy "
            "is: package.module:name.",
            show_default=False,
        ),
    ] = None,
    dead_letter: Annotated[
        bool | None,
        typer.Option("--dead-letter", help="Each job that fails for good leaves a dead letter.", show_default=False),
    ] = None,
    max_stalled_count: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="How often a job's workers may die before --on-crash-limit holds; left out, once.",
            show_default=False,
        ),
    ] = None,
    on_crash_limit: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="What becomes of a job whose workers died more often: fail, dead_letter or backoff; left out, fail.",
            show_default=False,
        ),
    ] = None,
    crash_backoff: Annotated[
        float | None,
        seconds_option(
            "--crash-backoff", help="What backoff waits at first, and each time double; left out, a minute."
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Touched when every process takes jobs; removed at the end, and while an event loop is held up for longer than "
            "a lock lasts.",
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            metavar="N",
            help="Answer probes over HTTP at /live and /ready on this port; 0 for any that is free. Left out, none.",
            show_default=False,
        ),
    ] = None,
    health_host: Annotated[
        str, typer.Option(metavar="HOST", help="Where to listen for probes; 0.0.0.0 in a container.")
    ] = "127.0.0.1",
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file changes; for development.")
    ] = False,
    reload_dir: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Where to look for changes; left out, here.", show_default=False),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    log_jobs: Annotated[
        bool, typer.Option("--log-jobs", help="Log a line for each job that ends; --log-level debug does so too.")
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(help="As text, short text, or one JSON object a line, with queue, job_id and job_name."),
    ] = LogFormat.text,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print events (ready, stopped) as JSON lines, on the standard output, where also goes what handlers print.",
        ),
    ] = False,
    _app: Annotated[str | None, _elsewhere("-A", "write the app alone: echomq worker {}:app")] = None,
    _jobs_at_once: Annotated[str | None, _elsewhere("-c", "write --concurrency {}")] = None,
    _queues: Annotated[str | None, _elsewhere("-Q", "write the queues behind the app, or -q NAME for each")] = None,
) -> None:
    """Take jobs and run them, until SIGTERM or SIGINT (Ctrl-C).

    Then it fetches no more, lets running jobs finish, cancels what is left and gives it back, so that another worker runs
    it. A second signal gives running jobs back at once. Exit code 75: the server was away, and outcomes could not be stored.

    With --processes, one that dies is started anew, and its jobs go back at once.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        refuse(f"--log-level {log_level}: must be debug, info, warning or error")
    log_to_stderr(level, log_format)
    let_no_stream_decide()
    if log_jobs:
        logging.getLogger("echomq.jobs").setLevel(logging.DEBUG)
    parent = Parent.of(os.environ)
    announce = Announcer(ready_file, as_json, log_format)
    if ready_file is not None and parent is None:
        _check_can_be_written(ready_file)
    probe_at = None if health_port is None else (health_host, health_port)
    if reload and parent is None:
        check_form(target)
        grace = SHUTDOWN_TIMEOUT if shutdown_timeout is None else shutdown_timeout
        raise typer.Exit(run_anew("worker", sys.argv[1:], reload_dir or (), processes, announce, probe_at, grace))
    with nullcontext() if parent is None else parent.told_of_a_refusal():
        command = "worker" if parent is None else parent.command
        found = load(target, command)
        given = {
            "concurrency": concurrency,
            "shutdown_timeout": shutdown_timeout,
            "retry_policy": None if retry is None else retry_policy(retry),
            "dead_letter": dead_letter,
            "max_stalled_count": max_stalled_count,
            "on_crash_limit": on_crash_limit,
            "metrics_points": metrics_points,
            "crash_backoff": None if crash_backoff is None else Backoff.exponential(crash_backoff),
        }
        options = {option: value for option, value in given.items() if value is not None}
        if shares or strict:
            queues, options = shared(queues or [], shares or [], strict, options)
        workers = workers_of(target, found, queues or [], options, warn=parent is None, command=command)
        if parent is not None:
            for one in workers:
                one._process = parent.process
            raise typer.Exit(run_in_loop(Process(workers, announce, parent).run()))
    check_server(target, found, processes)
    if processes > 1:
        code = _supervise(workers, processes, announce, probe_at)
    else:
        process = Process(workers, announce, None)
        with _probed(probe_at, lambda: [process.state()], 1):
            code = run_in_loop(process.run())
    announce.stopped(code)
    raise typer.Exit(code)


def _check_can_be_written(ready_file: Path) -> None:
    try:
        ready_file.touch()
        ready_file.unlink()
    except OSError as error:
        refuse(
            f"--ready-file {ready_file}: cannot be written ({error.strerror}); name a file in a folder that is there"
        )


def run_anew(
    command: str,
    words: Sequence[str],
    folders: Sequence[Path],
    processes: int,
    announce: Announcer,
    probe_at: tuple[str, int] | None,
    grace: float,
) -> int:
    """Runs what these words say, for that command, in processes that are started anew whenever a file in the folders changes.

    The app is loaded in them alone: so it may have any error, which they show, and a change of its file mends.
    """
    followed = changes(folders or [Path.cwd()], command)
    supervisor = Supervisor(processes, words, announce, give_back=None, grace=grace, changes=followed, command=command)
    with _probed(probe_at, supervisor.states, processes):
        code = run_in_loop(supervisor.run())
    announce.stopped(code)
    return code


def _supervise(workers: Sequence[Worker], processes: int, announce: Announcer, probe_at: tuple[str, int] | None) -> int:
    async def give_back(name: str) -> None:
        # Once locks have expired, whoever sweeps has done it.
        await asyncio.gather(*(one._take_from_dead(name, one._plan.lock_duration) for one in workers))

    grace = max(one._plan.shutdown_timeout for one in workers)
    supervisor = Supervisor(processes, sys.argv[1:], announce, give_back=give_back, grace=grace)
    with _probed(probe_at, supervisor.states, processes):
        return run_in_loop(supervisor.run())


@contextmanager
def _probed(
    probe_at: tuple[str, int] | None, look: Callable[[], Sequence[ProcessState]], wanted: int
) -> Iterator[None]:
    """While it lasts, probes are answered."""
    if probe_at is None:
        yield
        return
    try:
        probe = Probe(*probe_at, look, wanted)
    except OSError as error:
        refuse(f"cannot listen at {probe_at[0]}, port {probe_at[1]}: {error}; choose another --health-port")
    logging.getLogger("echomq").info("answers probes at %s/live and /ready", probe.url)
    probe.start()
    try:
        yield
    finally:
        probe.stop()
