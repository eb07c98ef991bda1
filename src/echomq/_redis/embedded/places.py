"""Where an embedded server keeps its data and its socket, and who may look inside."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from urllib.parse import quote

from echomq._redis.embedded.keeper import make_private_folder
from echomq.errors import InvalidOption

SOCKET_PATH_LIMIT = 103
"""Bytes of a socket's path that every Unix takes (104 with the closing zero on macOS, 108 on Linux)."""

MEMORY = "memory"
"""The name that is no folder: a server without persistence, for one process."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(name: str) -> None:
    """Refuse a name that cannot be a folder on every system.

    Raises:
        InvalidOption: it is empty, longer than 64, or has more than letters, digits, ``-``, ``_`` and ``.``.
    """
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"embedded server name {name!r}: a name has 1 to 64 letters, digits, '-', '_' or '.', and starts with a "
            "letter or digit; choose such a name, as in embedded://orders"
        )


def data_folder(name: str) -> Path:
    """The folder of the server of this name; it may not exist.

    It is ``$ECHOMQ_HOME/{name}``, else ``$XDG_DATA_HOME/echomq/{name}``, else ``~/.local/share/echomq/{name}``.

    Raises:
        InvalidOption: the name is not allowed, or there is no home folder and ``ECHOMQ_HOME`` is not set.
    """
    check_name(name)
    if name == MEMORY:
        raise InvalidOption(
            "embedded server name 'memory': this server has no folder, because it keeps nothing; "
            "choose another name for a server whose data is kept"
        )
    return home() / name


def home() -> Path:
    """The folder that holds the folders of all embedded servers."""
    if own := os.environ.get("ECHOMQ_HOME"):
        return Path(os.path.abspath(own))
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):  # the standard says to ignore any other
        return Path(data) / "echomq"
    try:
        return Path.home() / ".local" / "share" / "echomq"
    except RuntimeError as error:
        raise InvalidOption(
            "no folder for the embedded server's data: this user has no home folder; "
            "set ECHOMQ_HOME to a folder that this user can write in"
        ) from error


def names() -> list[str]:
    """The names of the embedded servers that have a folder.

    Raises:
        InvalidOption: there is no home folder and ``ECHOMQ_HOME`` is not set.
    """
    try:
        return sorted(one.name for one in home().iterdir() if one.is_dir() and _NAME.fullmatch(one.name))
    except FileNotFoundError:  # there was none yet
        return []
    except OSError as error:
        raise InvalidOption(
            f"the folder of the embedded servers cannot be read: {error}; set ECHOMQ_HOME to one that this user can read"
        ) from error


def make_data_folder(folder: Path) -> None:
    """Make the folder, readable for its owner only.

    Raises:
        InvalidOption: it cannot be made, or belongs to another user.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.stat()
        if state.st_uid != os.geteuid() and os.geteuid() != 0:
            raise PermissionError(f"it belongs to user {state.st_uid}, and this process runs as user {os.geteuid()}")
        if stat.S_IMODE(state.st_mode) != 0o700:
            folder.chmod(0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError("it is read-only")
    except OSError as error:
        raise InvalidOption(
            f"the embedded server's data folder {str(folder)!r} cannot be used: {error}; "
            "set ECHOMQ_HOME to a folder on a local disk that this user can write in"
        ) from error


def socket_path(folder: Path) -> str:
    """Where the server of this data folder listens: a short path in a folder that only this user can enter.

    Raises:
        InvalidOption: no such folder can be had.
    """
    digest = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
    file = f"{folder.name[:16]}-{digest}.sock"
    refused: list[str] = []
    for private in _private_folders():
        path = os.path.join(private, file)
        if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
            refused.append(f"{path} is longer than the {SOCKET_PATH_LIMIT} bytes that a socket's path may have")
            continue
        try:
            make_private_folder(private)
        except OSError as error:
            refused.append(str(error))
            continue
        return path
    raise InvalidOption(
        f"no place for the embedded server's socket: {'; '.join(refused)}; "
        "set TMPDIR to a short path of a folder that this user can write in"
    )


def url(socket: str) -> str:
    """The URL of the server that listens at this socket."""
    return f"unix://{quote(socket)}"


def memory_folder() -> Path:
    """A new private folder for a server without persistence.

    Raises:
        InvalidOption: the private folder in the temporary one cannot be used.
    """
    private = temporary_folder()
    try:
        make_private_folder(str(private))
        return Path(tempfile.mkdtemp(prefix=f"{MEMORY}-", dir=private))
    except OSError as error:
        raise InvalidOption(
            f"no place for the embedded server: {error}; set TMPDIR to a folder that this user can write in"
        ) from error


def temporary_folder() -> Path:
    """This user's private folder in the temporary one (it may not exist)."""
    return Path(tempfile.gettempdir()) / f"echomq-{os.geteuid()}"


def _private_folders() -> list[str]:
    folders = [str(temporary_folder()), f"/tmp/echomq-{os.geteuid()}"]  # the latter if TMPDIR is long
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_ours(runtime):  # `su` keeps the variable of the user before
        folders.insert(0, os.path.join(runtime, "echomq"))
    return folders


def _is_ours(folder: str) -> bool:
    try:
        return os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return False
