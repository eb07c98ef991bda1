"""A program that uses an embedded server, for the tests to run, freeze and kill: ``embedded_user.py NAME WHAT``.

It says on its output what it has reached, a word a line, and goes on when it reads a line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from echomq._redis.embedded import EmbeddedServer, join
from echomq._redis.embedded.keeper import ask


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def write(server: EmbeddedServer, writes: int) -> None:
    """Write keys, and say each one that the server has acknowledged."""
    for number in range(writes):
        key = f"{os.getpid()}:{number}"
        ask(server.socket, "SET", key, "there", timeout=10)
        say("wrote", key)


def main(name: str, what: str) -> None:
    server = join(name)
    say("joined", server.socket, server.path, server.pid)
    if what == "write":
        write(server, 3)
        server.close()
        say("left")
        return
    if what == "fork":
        child = os.fork()
        if child == 0:
            server.close()  # not its server: this must not take the parent's share away
            time.sleep(60)
            os._exit(0)
        say("child", child)
    elif what == "children":
        child = subprocess.Popen(["sleep", "60"], close_fds=False).pid
        say("child", child)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
