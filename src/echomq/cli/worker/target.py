"""What ``package.module:name`` is, and the workers that it makes."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, NoReturn

import typer

from echomq import EchoMQ, EchoMQError, RetryPolicy, SharedSlots, Worker

CONCURRENCY: Final = 10
SHUTDOWN_TIMEOUT: Final = 25.0

_OWN_SERVER: Final = "embedded://memory"
_SHARED_SERVER: Final = "use embedded://NAME, which processes share"
_POLICIES: Final = {"default": RetryPolicy.DEFAULT, "always": RetryPolicy.ALWAYS}
_OURS: Final = str(Path(__file__).parents[2])
_PYTHONS: Final = sysconfig.get_path("stdlib") + os.sep


def refuse(message: str, command: str = "worker") -> NoReturn:
    """Ends the command: an argument breaks a rule."""
    typer.echo(f"echomq {command}: {message}", err=True)
    raise typer.Exit(2)


def load(target: str, command: str = "worker") -> EchoMQ | Worker:
    """The app or the worker that it names; ends the command where there is none."""
    module, found = _named(target, "school:app", command)
    if not isinstance(found, EchoMQ | Worker):
        refuse(
            f"{target!r}: must name an EchoMQ or a Worker, and is of type {type(found).__name__}; {_what_it_has(module)}",
            command,
        )
    return found


def retry_policy(given: str) -> RetryPolicy:
    """The policy of this name, or at this place."""
    if given in _POLICIES:
        return _POLICIES[given]
    if ":" not in given:
        refuse(f"--retry-policy {given}: must be {', '.join(_POLICIES)}, or package.module:name, such as school:policy")
    _, found = _named(given, "school:policy")
    if not isinstance(found, RetryPolicy):
        refuse(f"--retry-policy {given}: must name a RetryPolicy, and is of type {type(found).__name__}")
    return found


def check_form(target: str, example: str = "school:app", command: str = "worker") -> tuple[str, str]:
    """The module and the name of ``package.module:name``; refuses what has not that form, which no change of a file mends."""
    file, _, name = target.partition(":")
    if file.endswith(".py") or "/" in file:
        module_name = os.path.relpath(file).removesuffix(".py").replace("/", ".")
        remedy = f"write {module_name}:{name or example.partition(':')[2]}"
        if module_name.startswith("."):
            remedy = "run the command in its folder"
        refuse(f"{target!r}: must name a module, not a file; {remedy}", command)
    if not file or not name:
        refuse(f"{target!r}: must be package.module:name, such as {example}", command)
    return file, name


def _named(target: str, example: str, command: str = "worker") -> tuple[ModuleType, Any]:
    """What ``package.module:name`` is, and its module."""
    file, name = check_form(target, example, command)
    module = _imported(target, file, command)
    try:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        refuse(f"{target!r}: the module {file} has no {name!r}; {_what_it_has(module)}", command)
    return module, found


def _imported(target: str, name: str, command: str) -> ModuleType:
    folder = os.getcwd()
    if "" not in sys.path and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name or (error.name is not None and name.startswith(f"{error.name}.")):
            refuse(
                f"{target!r}: there is no module {error.name!r} in {folder} or on Python's path; run the command in the "
                "folder where it is",
                command,
            )
        failure: Exception = error
    except Exception as error:  # whatever the user's own code raises
        failure = error
    failure.__traceback__ = _from_the_module_on(failure.__traceback__)
    if isinstance(failure, EchoMQError):  # it says what is wrong and what to do; all that is missing is where
        refuse(f"{target!r}: {failure}{_place(failure.__traceback__)}", command)
    typer.echo(f"echomq {command}: {target!r}: the module {name} cannot be imported:", err=True)
    traceback.print_exception(failure)
    raise typer.Exit(1)


def _from_the_module_on(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that only say how we and importlib came to run the module."""
    ours = (__file__, importlib.__file__, "<frozen importlib")
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    return trace


def _place(trace: TracebackType | None) -> str:
    """Where the user's code was."""
    theirs = [frame for frame in traceback.extract_tb(trace) if _is_theirs(frame.filename)]
    return f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""


def _is_theirs(file: str) -> bool:
    if file.startswith((_OURS, "<frozen ")):
        return False
    return not file.startswith(_PYTHONS) or "-packages" in file.removeprefix(_PYTHONS)


def keys_of(target: str, found: EchoMQ | Worker, command: str) -> tuple[str, bool | None]:
    """The prefix of its keys, and whether queue names stand in braces there; refuses a server that it alone can reach."""
    if found.connection.where == _OWN_SERVER:
        refuse(f"--app {target} is at {_OWN_SERVER}, a server for one process alone; {_SHARED_SERVER}", command)
    if isinstance(found, Worker):
        return found._keys.prefix, found._keys.hash_tag
    return found._prefix, found._hash_tag


def check_server(target: str, found: EchoMQ | Worker, processes: int) -> None:
    """Refuses ``embedded://memory`` to several processes, each of which would have its own, and warns of it."""
    if found.connection.where != _OWN_SERVER:
        return
    if processes > 1:
        refuse(
            f"{target} is at {_OWN_SERVER}, a server for one process alone, so --processes {processes} would be as many servers; "
            f"{_SHARED_SERVER}"
        )
    logging.getLogger("echomq").warning(
        "%s is at %s, a server for this process alone: no other program can add a job; %s",
        target,
        _OWN_SERVER,
        _SHARED_SERVER,
    )


def _what_it_has(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, EchoMQ | Worker))
    return f"it has: {', '.join(names)}" if names else "it has no EchoMQ and no Worker at all"


def shared(
    queues: Sequence[str], shares: Sequence[str], strict: bool, options: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """The queues of ``-q NAME=WEIGHT``, and the options of their workers: slots that they share, in place of a concurrency."""
    if queues or not shares:
        refuse("name each queue that shares slots with -q, as in -q high=3 -q low=1, and no other")
    weights: dict[str, int] = {}
    for share in shares:
        if "," in share:
            refuse(
                f"-q {share}: each names one queue; write {' '.join(f'-q {one.strip()}' for one in share.split(','))}"
            )
        name, equals, weight = share.rpartition("=")
        if not equals:
            name, weight = share, ""
        if (equals and not weight.isdecimal()) or (equals and strict):
            refuse(f"-q {share}: must be NAME, or without --strict NAME=WEIGHT with a whole number, such as -q high=3")
        if name in weights:
            refuse(f"-q {share}: the queue {name!r} is named twice")
        weights[name] = int(weight or "1")
    options = dict(options)
    size = options.pop("concurrency", CONCURRENCY)
    try:
        slots = SharedSlots(size, strict=list(weights)) if strict else SharedSlots(size, weights=weights)
    except EchoMQError as error:
        refuse(f"-q: {error}")
    return list(weights), {**options, "slots": slots}


def workers_of(
    target: str,
    found: EchoMQ | Worker,
    queues: Sequence[str],
    options: Mapping[str, Any],
    *,
    warn: bool,
    command: str = "worker",
) -> list[Worker]:
    """The workers of these queues, with the options that were given; where no queue is, of those that the app's tasks name.

    With ``warn`` a line says which of the queues no task names.
    """
    if isinstance(found, Worker):
        if queues:
            _refuse_to_a_worker(target, "queue", "leave the queue names out", command)
        for option, value in options.items():
            word = "--" + option.replace("_", "-")
            written = f"{value:g}" if isinstance(value, float) else repr(value)
            _refuse_to_a_worker(target, option, f"leave {word} out, or write Worker(…, {option}={written})", command)
        return [found]
    named = found.queue_names
    if not queues and not named:
        refuse("the app has no task, so there is no queue to work: name one, or give the app a task", command)
    settings = {"shutdown_timeout": SHUTDOWN_TIMEOUT, **options}
    if "slots" not in settings:
        settings.setdefault("concurrency", CONCURRENCY)
    try:
        workers = [found.worker(name, **settings) for name in queues or named]
    except EchoMQError as error:
        refuse(str(error), command)
    strange = [name for name in queues if name not in named]
    if strange and warn:
        logging.getLogger("echomq").warning(
            "no task of %s names the queue %s; its tasks name: %s",
            target,
            ", ".join(map(repr, strange)),
            ", ".join(map(repr, named)) or "none",
        )
    return workers


def _refuse_to_a_worker(target: str, option: str, remedy: str, command: str) -> NoReturn:
    refuse(f"{target} is a Worker, which has its {option}; {remedy}", command)
