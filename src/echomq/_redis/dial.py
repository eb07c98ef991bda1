"""From the name of a host to a socket that is connected to one of its addresses, for both kinds of link.

Names are looked up in threads of our own. An event loop looks them up in its default executor, where handlers run what
blocks (``asyncio.to_thread``): while they fill it, no connection would come about.

A host may have several addresses. One that is silent must not take the time of the others, so each has an equal part of
what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeAlias

Address: TypeAlias = tuple[int, Any]
"""A family, and what ``socket.connect`` takes."""

_SHARED_FOR: Final = 5.0
_MOST_AT_ONCE: Final = 8
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))

# Lookups that began, the latest last, by process (the thread of a parent is none in a forked child), host and port. There is
# no lock, for a signal handler may come here at any moment: at worst there is one lookup more.
_lookups: Final[dict[tuple[int, str, int], list[tuple[float, Future[list[Address]]]]]] = {}


def dial(host: str, port: int, deadline: float) -> socket.socket:
    """A connected socket; by the deadline, on ``time.monotonic``. It blocks.

    Raises:
        OSError: why there is none. ``TimeoutError`` without a number: nobody answered; ``gaierror``: there is no such host.
    """
    addresses = _numeric(host, port) or _looked_up(host, port).result(max(deadline - time.monotonic(), 0))
    failures: list[tuple[Any, OSError]] = []
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        share = (deadline - time.monotonic()) / left
        if share <= 0:
            break
        try:
            sock = _new_socket(family)
        except OSError as error:  # perhaps a family that this system does not have
            failures.append((address, error))
            continue
        try:
            sock.settimeout(share)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            failures.append((address, error))
        except BaseException:
            sock.close()
            raise
    raise _of_all(failures)


async def dial_async(host: str, port: int, deadline: float) -> socket.socket:
    """The same without blocking the event loop, on whose clock the deadline is."""
    loop = asyncio.get_running_loop()
    addresses = _numeric(host, port) or await _answer(_looked_up(host, port), loop)
    failures: list[tuple[Any, OSError]] = []
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            sock = _new_socket(family)
        except OSError as error:
            failures.append((address, error))
            continue
        try:
            sock.setblocking(False)
            async with asyncio.timeout((deadline - loop.time()) / left):
                await loop.sock_connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            failures.append((address, error))
        except BaseException:
            sock.close()
            raise
    raise _of_all(failures)


def _new_socket(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel is to find out, within about 45 seconds, that an idle peer has gone.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):  # not every platform names them
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except BaseException:
        sock.close()
        raise
    return sock


def _of_all(failures: Sequence[tuple[Any, OSError]]) -> OSError:
    if len(failures) == 1:
        return failures[0][1]
    if all(map(_is_silence, (error for _, error in failures))):
        return TimeoutError()
    return OSError("; ".join(f"{address[0]}: {_shown(error)}" for address, error in failures))


def _shown(error: OSError) -> str:
    if _is_silence(error):
        return "no answer"
    return str(error) if error.errno is None else f"[Errno {error.errno}] {os.strerror(error.errno)}"


def _is_silence(error: OSError) -> bool:
    return isinstance(error, TimeoutError) and error.errno is None  # with a number it is the system's own time-out


# -- names -------------------------------------------------------------------------------------------------------------


def _numeric(host: str, port: int) -> list[Address]:
    """The address that the host already is, or none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return [(family, (host, port))]
    return []


def _looked_up(host: str, port: int) -> Future[list[Address]]:
    """What becomes of a lookup in a thread, which nobody can end, and which does not keep the process alive.

    It may take minutes where no server of names answers. So who comes soon after another waits for the same answer; who comes
    later has it looked up anew, since by then it may be found at once, but not by ever more threads.
    """
    name, now = (os.getpid(), host, port), time.monotonic()
    under_way = [one for one in _lookups.get(name, ()) if not one[1].done()]
    if under_way and (now - under_way[-1][0] < _SHARED_FOR or len(under_way) >= _MOST_AT_ONCE):
        return under_way[-1][1]
    answer: Future[list[Address]] = Future()
    answer.set_running_or_notify_cancel()  # who waits and is cancelled does not cancel it for the others
    threading.Thread(target=_look_up, args=(host, port, answer), name=f"echomq lookup {host}", daemon=True).start()
    _lookups[name] = [*under_way, (now, answer)]
    return answer


def _look_up(host: str, port: int, answer: Future[list[Address]]) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result([(family, address) for family, _, _, _, address in found])


async def _answer(answer: Future[list[Address]], loop: asyncio.AbstractEventLoop) -> list[Address]:
    given = loop.create_future()

    def wake() -> None:
        if not given.done():
            given.set_result(None)

    def tell(_: Future[list[Address]]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(wake)

    answer.add_done_callback(tell)
    await given
    return answer.result()
