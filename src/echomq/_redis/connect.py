"""Where the server is and who we are to it: ``Settings``, and what every new connection does with them.

redis-py reads the URLs, builds the TLS context and defines credential providers, so that what works there works
here.
The socket and everything on it is ours (``pipe.py``, ``heartbeat.py``): we need to know, for each command, whether it
was sent and whether its reply came.
"""

from __future__ import annotations

import errno
import inspect
import re
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
import redis.asyncio.connection as redis_asyncio
import redis.connection as redis_sync

from echomq._redis.wire import Argument, Reply, refused_for_now
from echomq.errors import InvalidOption, ServerError, ServerUnavailable

if TYPE_CHECKING:
    from redis.credentials import CredentialProvider

_TLS_OPTIONS = frozenset(
    name for name in inspect.signature(redis_asyncio.SSLConnection.__init__).parameters if name.startswith("ssl_")
)
# Options of redis-py that a shared URL may carry. EchoMQ decides these itself (see `Link`), so they are read over.
_NOT_OURS = frozenset(
    {
        "socket_timeout", "socket_connect_timeout", "socket_read_size", "socket_keepalive", "retry_on_timeout",
        "max_connections", "health_check_interval", "timeout", "protocol", "legacy_responses", "decode_responses",
        "encoding", "encoding_errors", "client_name", "lib_name", "lib_version",
    }
)  # fmt: skip
_OURS = frozenset({"db", "username", "password"})
_CLIENT_NAME = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach one server. Equal settings reach the same server as the same user; usable as a dictionary key.

    Attributes:
        host, port: of a TCP server.
        path: of a unix socket; then host and port mean nothing.
        db: database number.
        username, password: for ``AUTH``; without a user name, the server's default user.
        credential_provider: a redis-py credential provider that is asked at each connect, instead of the two above.
        tls: None without TLS, else redis-py's ``ssl_…`` options as sorted pairs.
        embedded: the URL of the embedded server that this is, for messages: whoever wrote that knows of no path.
    """

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    credential_provider: CredentialProvider | None = field(default=None, repr=False)
    tls: tuple[tuple[str, Any], ...] | None = field(default=None, repr=False)
    embedded: str | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str) -> Settings:
        """Read ``redis://``, ``rediss://`` (TLS) or ``unix://``, with the query options that redis-py knows.

        Raises:
            InvalidOption: names the URL (its password hidden), what is wrong with it and what to write instead.

        Example:
            >>> Settings.from_url("rediss://shop:secret@redis.example:6380/2?ssl_ca_certs=/etc/ca.pem").where
            'redis.example:6380/2'
            >>> Settings.from_url("unix:///run/redis.sock?db=1").where
            'unix:///run/redis.sock?db=1'
        """
        if not isinstance(url, str):
            raise InvalidOption(f"a server URL is text such as 'redis://localhost:6379/0', got {type(url).__name__}")
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018 - reading it checks it
        except ValueError:
            # What urlsplit complains about may be a piece of the password, so its words are not passed on.
            raise _bad_url(
                url, "host and port cannot be read", "write scheme://user:password@host:port/db, with special "
                "characters of user name and password percent-encoded"
            ) from None  # fmt: skip
        scheme = parts.scheme.lower()
        if "sentinel" in scheme or "cluster" in scheme:
            raise _bad_url(
                url, f"{scheme}:// is not supported yet", "give the address of the primary as redis://host:port"
            )
        if scheme not in ("redis", "rediss", "unix"):
            raise _bad_url(
                url,
                f"its scheme is {scheme or 'missing'}",
                "use redis://, rediss:// (TLS), unix:///path/to.sock or embedded://name",
            )
        if parts.fragment:
            raise _bad_url(url, "a URL of a server has no '#'", "write a '#' in a password as %23")
        if scheme != "unix" and "@" not in parts.netloc and "@" in parts.path + parts.query:
            raise _bad_url(
                url, "a '/' or '?' before the '@' ends the host", "percent-encode user name and password (%2F, %3F)"
            )
        if scheme == "unix" and not parts.path:
            raise _bad_url(url, "it names no socket", "write unix:///path/to.sock")
        if scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
            raise _bad_url(url, "what follows its host is no database number", "write redis://host:port/0")
        try:
            options: dict[str, Any] = dict(redis_asyncio.parse_url(url))
        except (ValueError, redis.RedisError):
            raise _bad_url(url, "an option of it has a value of the wrong kind", "see redis-py's from_url") from None
        connection_class = options.pop("connection_class", redis_asyncio.Connection)
        unknown = sorted(
            set(options) - _OURS - _NOT_OURS - {"host", "port", "path"} - {n for n in options if n.startswith("ssl_")}
        )
        if unknown:
            raise _bad_url(url, f"it has an unknown option {unknown[0]!r}", "remove it, or correct its name")
        try:
            return cls._from_options(connection_class, options)
        except InvalidOption as error:
            raise _bad_url(url, str(error), "correct the URL") from None

    @classmethod
    def from_client(cls, client: object) -> Settings:
        """Take the settings of a redis-py client, sync or async: address, user, database, TLS, credential provider.

        Its pool and its flags (such as ``decode_responses`` or time-outs) are not used, and it stays yours.

        Raises:
            InvalidOption: not a redis-py client, or one whose way of connecting we cannot repeat.
        """
        pool = getattr(client, "connection_pool", None)
        connection_class = getattr(pool, "connection_class", None)
        options = getattr(pool, "connection_kwargs", None)
        if not isinstance(connection_class, type) or not isinstance(options, Mapping):
            raise InvalidOption(
                f"expected a client of redis-py (redis.Redis or redis.asyncio.Redis), got {type(client).__name__}: "
                "pass such a client, or a URL (clusters and sentinels are not supported yet)"
            )
        # Exactly redis-py's own: a subclass (a sentinel's, a fake server's) may reach its server in another way.
        if connection_class not in _CONNECTION_CLASSES or options.get("redis_connect_func") is not None:
            raise InvalidOption(
                f"a client that connects through {connection_class.__name__} cannot be repeated by EchoMQ: "
                "pass a plain client without redis_connect_func, or a URL"
            )
        return cls._from_options(connection_class, options)

    @classmethod
    def _from_options(cls, connection_class: type, options: Mapping[str, Any]) -> Settings:
        unix = issubclass(connection_class, _UNIX_CLASSES)
        tls: tuple[tuple[str, Any], ...] | None = None
        given = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in options.items()
            if name == "ssl_check_hostname" or (name.startswith("ssl_") and value is not None and value is not False)
        }
        if issubclass(connection_class, _TLS_CLASSES):
            for name in sorted(set(given) - _TLS_OPTIONS):
                raise InvalidOption(
                    f"the TLS option {name} is unknown to the asyncio side of the installed redis-py "
                    f"{redis.__version__}: remove it, or upgrade redis-py"
                )
            tls = tuple(sorted(given.items()))
        elif given and not unix:
            raise InvalidOption(f"{min(given)} is an option of TLS: use rediss://, or remove it")
        db = _number("the database", options.get("db"), 0, 2**31 - 1, default=0)
        provider = options.get("credential_provider")
        username, password = _text(options.get("username")), _text(options.get("password"))
        if unix:
            return cls(
                path=str(options["path"]), db=db, username=username, password=password, credential_provider=provider
            )
        return cls(
            host=str(options.get("host") or "localhost"),
            port=_number("the port", options.get("port"), 1, 65535, default=6379),
            db=db,
            username=username,
            password=password,
            credential_provider=provider,
            tls=tls,
        )

    @property
    def where(self) -> str:
        """The server in a few words, for messages; never with a password."""
        if self.embedded is not None:
            return self.embedded
        if self.path is not None:
            return f"unix://{self.path}?db={self.db}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.db}"

    def tls_context(self) -> ssl.SSLContext | None:
        """A fresh TLS context (so that renewed certificates are read), or None without TLS."""
        if self.tls is None:
            return None
        context: ssl.SSLContext = redis_asyncio.SSLConnection(**dict(self.tls)).ssl_context.get()
        return context

    def credentials(self) -> tuple[str, ...]:
        """The arguments of ``AUTH``; empty when there is nothing to say. May ask the credential provider."""
        if self.credential_provider is not None:
            return tuple(self.credential_provider.get_credentials())
        return self._own_credentials()

    async def credentials_async(self) -> tuple[str, ...]:
        """Like ``credentials``, for an event loop."""
        if self.credential_provider is not None:
            return tuple(await self.credential_provider.get_credentials_async())
        return self._own_credentials()

    def _own_credentials(self) -> tuple[str, ...]:
        if self.username:
            return (self.username, self.password or "")
        return (self.password,) if self.password else ()

    def greeting(self, credentials: tuple[str, ...], client_name: str | None) -> list[tuple[Argument, ...]]:
        """What a new connection says first. The last command shows that the server is there and serves."""
        commands: list[tuple[Argument, ...]] = []
        if credentials:
            commands.append(("AUTH", *credentials))
        if self.db:
            commands.append(("SELECT", self.db))
        if client_name:
            commands.append(("CLIENT", "SETNAME", client_name))
        commands.append(("PING",))
        return commands


_UNIX_CLASSES = (redis_asyncio.UnixDomainSocketConnection, redis_sync.UnixDomainSocketConnection)
_TLS_CLASSES = (redis_asyncio.SSLConnection, redis_sync.SSLConnection)
_CONNECTION_CLASSES = (redis_asyncio.Connection, redis_sync.Connection, *_UNIX_CLASSES, *_TLS_CLASSES)


def check_link_options(client_name: str | None, **seconds: float) -> None:
    """Validate what both kinds of link are made with."""
    if client_name is not None and not _CLIENT_NAME.fullmatch(client_name):
        raise InvalidOption(
            f"client_name={client_name!r}: a server takes printable ASCII without spaces only; encode the name first"
        )
    for name, value in seconds.items():
        if not value > 0:
            raise InvalidOption(f"{name}={value!r}: must be more than 0 seconds (math.inf for no limit)")


def check_greeting(
    where: str, greeting: Sequence[tuple[Argument, ...]], replies: Sequence[Reply | BaseException]
) -> None:
    """Raise what a refused greeting means."""
    for command, reply in zip(greeting, replies, strict=True):
        if command[0] == "PING" and isinstance(reply, (bytes, list)) and reply != b"PONG":
            # A client that tries a port of its own range often enough meets itself there, and hears what it says.
            raise ServerUnavailable(f"{where}: what answers there is no Redis or Valkey server")
        if not isinstance(reply, BaseException):
            continue
        if isinstance(reply, ServerError):
            if refused_for_now(reply):
                raise ServerUnavailable(f"{where}: the server refuses work for now: {reply}")
            # A user without these two rights can still work: the name is for people, and a refused PING is an answer.
            if reply.code == "NOPERM" and command[0] in ("CLIENT", "PING"):
                continue
            raise ServerError(
                f"{reply} (the answer of {where} to {command[0]!s}){_remedy(command, reply)}", code=reply.code
            )
        raise reply


def _remedy(command: tuple[Argument, ...], refusal: ServerError) -> str:
    """What to do about a refused greeting."""
    if command[0] == "SELECT" and refusal.code == "ERR":
        return f"; the server has no database {command[1]!s}: use a lower number (most servers have 0 to 15)"
    if command[0] == "AUTH" and refusal.code == "ERR":
        return "; this server asks for no password: leave it out of the URL, or set one on the server"
    if refusal.code == "WRONGPASS":
        return "; correct user name and password: redis://user:password@host:port"
    if refusal.code == "NOAUTH":
        return "; this server asks for a password: redis://user:password@host:port, or redis://:password@host:port"
    return ""


_BYTES_ACKED = slice(120, 128)
"""Where Linux has, in its ``tcp_info``, how many bytes the other side has confirmed."""


def confirmed(sock: Any) -> int | None:
    """How many bytes the other side's kernel has confirmed so far, with what TLS adds; None where nobody can say."""
    if sys.platform != "linux":
        return None
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)[_BYTES_ACKED]
    except OSError:  # no TCP
        return None
    return int.from_bytes(told, sys.byteorder) or None  # a kernel without this number gives less, or nothing


def unavailable(settings: Settings, error: Exception, timeout: float) -> ServerUnavailable:
    """The error that says why no connection came about, and what to do; to be raised ``from`` its cause."""
    text = str(error) or type(error).__name__
    remedy = ""
    if isinstance(error, TimeoutError) and error.errno is None:  # with a number it is the system's own time-out
        text = f"no answer within {timeout:g} s"
        if settings.tls is not None:
            remedy = "; does the server speak TLS? rediss:// needs it, redis:// does without"
    elif isinstance(error, socket.gaierror):
        remedy = "; is the name of the host right? check the URL"
    elif isinstance(error, (FileNotFoundError, ConnectionRefusedError)) and settings.embedded is not None:
        text, remedy = "it does not run now", "; it is started again"
    elif isinstance(error, FileNotFoundError) and settings.path is not None:
        remedy = "; there is no such socket: is the server running, and is the path in the URL right?"
    # Where a host has several addresses one error is made of all, with their numbers in its text only.
    elif isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in text:
        remedy = "; is the server running there? check the URL"
    elif isinstance(error, ssl.SSLCertVerificationError):
        remedy = "; name who vouches for its certificate: rediss://…?ssl_ca_certs=/path/to/ca.pem"
    elif settings.tls is not None and isinstance(error, (ssl.SSLError, ConnectionError)):
        remedy = "; does the server speak TLS? rediss:// needs it, redis:// does without"
    elif settings.path is None and isinstance(error, ConnectionResetError):
        remedy = "; a server that speaks TLS needs rediss://"
    return ServerUnavailable(f"{settings.where}: cannot connect: {text}{remedy}")


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


def _number(what: str, value: Any, lowest: int, highest: int, *, default: int) -> int:
    if value is None or value == "":
        return default
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = lowest - 1
    if not lowest <= number <= highest:
        raise InvalidOption(f"{what} is {value!r}: it must be a whole number from {lowest} to {highest}")
    return number


def _bad_url(url: str, reason: str, remedy: str) -> InvalidOption:
    # Up to the last '@', because an unencoded password may itself hold any of the characters that end it.
    shown = re.sub(r"//.*@", "//***@", url, flags=re.DOTALL)
    shown = re.sub(r"(password=)[^&]*", r"\1***", shown)
    return InvalidOption(f"the server URL {shown!r} cannot be used: {reason}; {remedy}")
