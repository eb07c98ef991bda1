"""The embedded server: a real Valkey or Redis of this user's own, started when first needed, stopped by its last user.

All processes of a user that name the same server share it, and its data outlives them. ``memory`` is the exception: a
server for one process, without persistence, gone when that process ends.

    places    where data and socket are, and who may look inside
    binary    which server program, and which data it can read
    member    what a process does that uses the server: join, look again, leave
    keeper    the process that starts, restarts and stops the server; and the locks that decide
    control   status, start, stop from outside

What can be lost:

``fsync="everysec"`` (the default)
    If the machine loses power or its kernel crashes, the last second of writes, at worst two. If the server process
    alone is killed, nothing that was answered; unless the disk was so slow just then that a write to it was still going
    on, when the server answers up to two seconds ahead of its file.
``fsync="always"``
    Nothing that was answered. Each batch of writes waits for the disk.
"""

from echomq._redis.embedded.control import Ending, Status, start, status, stop
from echomq._redis.embedded.member import EmbeddedServer, Fsync, join, join_async
from echomq._redis.embedded.places import data_folder, names

__all__ = [
    "EmbeddedServer",
    "Ending",
    "Fsync",
    "Status",
    "data_folder",
    "join",
    "join_async",
    "names",
    "start",
    "status",
    "stop",
]
