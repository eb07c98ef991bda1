"""Payloads: how the data and the result of a job stand on the server, where they are more than JSON as it is.

A chain of codecs works on the bytes of the JSON text, one after the other. What comes out is stored in an object that says
what was done, so that it remains JSON for whoever reads it, in any language::

    {"$echomq": {"steps": [{"name": "zlib"}, {"name": "fernet", "key": "0f3a…"}], "body": "…base64…"}}
"""

from __future__ import annotations

import abc
import asyncio
import base64
import binascii
import contextlib
import hashlib
import os
import re
import tempfile
import threading
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast

import msgspec

from echomq._log import said_by
from echomq.errors import InvalidOption, PayloadUnreadable, StoreUnavailable
from echomq.options import MAX_BYTES, MAX_COUNT, Duration, check_whole, shown, to_seconds

KEY: Final = "$echomq"
_MARK: Final = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"\$echomq"[ \t\r\n]*:')
_INLINE: Final = 16 * 1024
"""Bytes up to which a payload is worked on where it stands; above, in a thread."""

_INLINE_INFLATED: Final = 1024 * 1024
"""Bytes up to which it may grow there."""

_MOST_THREADS: Final = 32
_IDLE: Final = 10.0
"""Seconds after which a thread that has nothing to do ends."""

LIMIT: Final = 60.0
"""Seconds that a store has to answer, where nobody says otherwise."""

_GROWTH: Final = 512
"""Bytes that the codecs before a store may add at most to what is small."""

T = TypeVar("T")


class Codec(abc.ABC):
    """One way of storing payloads. For one of your own, give it a name and both directions.

    Its methods may be called in any thread, in several at once.

    Attributes:
        name: what stored payloads call it; never to be changed, or they cannot be read any more.

    Example:
        >>> class Reversed(Codec):
        ...     name = "reversed"
        ...     def encode(self, body):
        ...         return body[::-1], {}
        ...     def decode(self, body, step):
        ...         return body[::-1]
    """

    name: ClassVar[str] = ""

    @abc.abstractmethod
    def encode(self, body: bytes) -> tuple[bytes, dict[str, Any]] | None:
        """What is stored in place of these bytes, and what ``decode`` has to know besides, as JSON; None: leave it as it is."""

    @abc.abstractmethod
    def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
        """What ``encode`` was given. ``step`` is what it noted.

        Raises:
            StoreUnavailable: not now, but perhaps later. Anything else: it cannot be read again.
        """

    def waits(self, size: int) -> bool:
        """Whether ``encode`` of so many bytes waits for a disk or another machine."""
        return False

    def waits_for(self, step: Mapping[str, Any]) -> bool:
        """The same of ``decode``."""
        return False


class Compressed(Codec):
    """Compresses payloads with zlib, which every language has, where that makes them smaller.

    Args:
        above: bytes up to which a payload is left as it is.
        level: 1 (fast) to 9 (small).
        most: bytes up to which a payload is compressed, and to which one may grow when it is read again. A few kilobytes can
            grow to gigabytes; what would grow further is refused, and fails its job.

    Example:
        >>> queue = Queue("reports", connection="redis://localhost:6379/0", codec=Compressed(above=4096))
    """

    name = "zlib"

    def __init__(self, *, above: int = 1024, level: int = 6, most: int = 16 * MAX_BYTES) -> None:
        self.above: int = check_whole(above, "above", least=0, most=MAX_COUNT)
        self._level = check_whole(level, "level", least=1, most=9)
        self.most: int = check_whole(most, "most", least=1, most=MAX_COUNT)

    def __repr__(self) -> str:
        return f"Compressed(above={self.above}, level={self._level}, most={self.most})"

    def encode(self, body: bytes) -> tuple[bytes, dict[str, Any]] | None:
        """The bytes compressed; None if they are few, or too many, or do not shrink by what base64 adds to them."""
        if not self.above < len(body) <= self.most:
            return None
        small = zlib.compress(body, self._level)
        return (small, {}) if len(small) * 4 // 3 + 64 < len(body) else None

    def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
        """The bytes again; refuses what grows too large."""
        whole = _inflated(body, self.most)
        if whole is None:
            raise PayloadUnreadable(
                f"it cannot be inflated: it grows beyond {self.most:,} bytes, which is most= of Compressed"
            )
        return whole


def _inflated(body: bytes, most: int) -> bytes | None:
    """None: it grows to more than so many bytes."""
    inflate = zlib.decompressobj()
    whole = inflate.decompress(body, most + 1)  # one more, which also reads the end behind what just fits
    if len(whole) > most:
        return None
    if not inflate.eof:
        raise PayloadUnreadable("it cannot be inflated: its end is missing")
    return whole


class Encrypted(Codec):
    """Encrypts payloads with Fernet (AES-128 and an HMAC), of ``pip install "echomq[encryption]"``.

    New payloads are written with the first key; those of the others are read as long as they are named here. To bring in a new
    key: add it *behind* the others everywhere, then put it first, and drop the old one when no job of it is left.

    Job names, options, ids, reasons of failures, tracebacks, logs and progress are not encrypted, nor is the id that
    ``unique_by`` makes of data, which is a hash of them.

    Args:
        keys: one, or several, the newest first; as ``generate_key`` makes them.

    Example:
        >>> codec = Encrypted([os.environ["JOBS_KEY"], os.environ["JOBS_KEY_OF_LAST_YEAR"]])
    """

    name = "fernet"

    def __init__(self, keys: str | bytes | Sequence[str | bytes]) -> None:
        given = [keys] if isinstance(keys, (str, bytes)) else list(keys)
        if not given:
            raise InvalidOption("keys=[]: give at least one, such as Encrypted.generate_key() makes")
        fernet = _cryptography().Fernet
        self._keys: dict[str, Any] = {}
        for number, key in enumerate(given):
            try:
                made = fernet(key)
            except (ValueError, TypeError, binascii.Error):
                raise InvalidOption(
                    f"keys[{number}]: must be 32 bytes in URL-safe base64, such as Encrypted.generate_key() makes"
                ) from None
            self._keys.setdefault(_key_id(key), made)

    def __repr__(self) -> str:
        return f"Encrypted({', '.join(self._keys)})"

    @staticmethod
    def generate_key() -> str:
        """A new key, to be kept secret and never lost."""
        key: bytes = _cryptography().Fernet.generate_key()
        return key.decode()

    def encode(self, body: bytes) -> tuple[bytes, dict[str, Any]]:
        """The bytes encrypted with the first key."""
        key_id, fernet = next(iter(self._keys.items()))
        return base64.urlsafe_b64decode(fernet.encrypt(body)), {"key": key_id}

    def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
        """The bytes again, if the key is known and nobody has changed them."""
        fernet = self._keys.get(str(step.get("key")))
        if fernet is None:
            raise PayloadUnreadable(
                f"it was encrypted with key {step.get('key')}, and the keys here are {', '.join(self._keys)}: add that key"
            )
        try:
            whole: bytes = fernet.decrypt(base64.urlsafe_b64encode(body))
        except _cryptography().InvalidToken:
            raise PayloadUnreadable("it was changed after it was encrypted") from None
        return whole


def _cryptography() -> Any:
    try:
        from cryptography import fernet
    except ImportError as error:
        raise InvalidOption(f'Encrypted needs cryptography: pip install "echomq[encryption]" ({error})') from None
    return fernet


def _key_id(key: str | bytes) -> str:
    """What a payload calls its key: nothing about the key can be learned from it."""
    raw = base64.urlsafe_b64decode(key)
    return hashlib.sha256(b"echomq key id:" + raw).hexdigest()[:12]


# -- stores ------------------------------------------------------------------------------------------------------------


class PayloadStore(abc.ABC):
    """Where large payloads are kept: a folder, a bucket, or one of your own. Its methods may be called in any thread.

    What a method raises, apart from ``KeyError``, means that the store cannot be reached for now.
    """

    @abc.abstractmethod
    def put(self, key: str, body: bytes) -> None:
        """Stores the bytes under a key that has never been used. When it returns, they are safe."""

    @abc.abstractmethod
    def get(self, key: str) -> bytes:
        """The bytes of a key.

        Raises:
            KeyError: there are none, and will be none.
        """

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Removes the bytes of a key; does nothing if there are none."""

    @abc.abstractmethod
    def entries(self) -> Iterator[tuple[str, datetime]]:
        """Every key, and when it was put (an aware ``datetime``)."""


_FILE_KEY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9a-f]{32}")
_FOLDER_MARK: Final = ".echomq-payloads"
_HALF_WRITTEN: Final = ".half-written-"
_A_DAY: Final = 86_400


class FileStore(PayloadStore):
    """Payloads as files of a folder, which all who add and work jobs must see: a disk of this machine, or a shared one.

    A file is written beside its place, flushed to the disk and put there in one step, so nobody reads a part of it. Files are
    readable for their owner only, so all these programs run as the same user.

    Args:
        folder: made when the first payload comes. Nothing else should be in it.

    Example:
        >>> codec = Offloaded(FileStore("/mnt/payloads"), above=65_536)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = Path(folder)

    def __repr__(self) -> str:
        return f"FileStore({str(self.folder)!r})"

    def put(self, key: str, body: bytes) -> None:
        """Writes the file."""
        path = self._path(key)
        new = not path.parent.is_dir()
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / _FOLDER_MARK).touch()
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_HALF_WRITTEN, delete=False) as file:
            try:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        _flush_folder(path.parent)
        if new:
            _flush_folder(self.folder)

    def get(self, key: str) -> bytes:
        """Reads the file."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            if not (self.folder / _FOLDER_MARK).exists():  # a disk that is not mounted has none of our files
                raise OSError(
                    f"{self.folder} is no folder of payloads, or its disk is not mounted: {_FOLDER_MARK} is missing"
                ) from None
            raise KeyError(key) from None

    def delete(self, key: str) -> None:
        """Removes the file."""
        self._path(key).unlink(missing_ok=True)

    def entries(self) -> Iterator[tuple[str, datetime]]:
        """Every file. What a process that died has left half-written is removed by the way, when it is a day old."""
        for path in self.folder.glob("*/*"):
            key = f"{path.parent.name}/{path.name}"
            try:
                changed = path.stat().st_mtime
                if _FILE_KEY.fullmatch(key):
                    yield key, datetime.fromtimestamp(changed, UTC)
                elif path.name.startswith(_HALF_WRITTEN) and changed < time.time() - _A_DAY:
                    path.unlink()
            except FileNotFoundError:  # removed meanwhile
                continue

    def _path(self, key: str) -> Path:
        if not _FILE_KEY.fullmatch(key):  # which stands in a job, so somebody's hand may have written it
            raise KeyError(key)
        return self.folder / key


def _flush_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # where folders cannot be opened, they need not be flushed
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class S3Store(PayloadStore):
    """Payloads as objects of a bucket of S3, or of anything that speaks its language.

    Args:
        client: made by ``boto3.client("s3")``, of ``pip install "echomq[s3]"``, with the time-outs and retries that you want.
        bucket: its name. It must be there.
        prefix: what the names of the objects begin with.

    Example:
        >>> codec = Offloaded(S3Store(boto3.client("s3"), "jobs"), above=65_536)
    """

    def __init__(self, client: Any, bucket: str, prefix: str = "echomq/") -> None:
        if not hasattr(client, "put_object"):
            raise InvalidOption(f"client={shown(client)}: must be a client of S3, such as boto3.client('s3')")
        self._client = client
        self.bucket = bucket
        self.prefix = prefix

    def __repr__(self) -> str:
        return f"S3Store({self.bucket!r}, prefix={self.prefix!r})"

    def put(self, key: str, body: bytes) -> None:
        """Puts the object."""
        self._client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=body)

    def get(self, key: str) -> bytes:
        """Gets the object."""
        try:
            found = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key)
        except self._client.exceptions.NoSuchKey:
            raise KeyError(key) from None
        body: bytes = found["Body"].read()
        return body

    def delete(self, key: str) -> None:
        """Deletes the object."""
        self._client.delete_object(Bucket=self.bucket, Key=self.prefix + key)

    def entries(self) -> Iterator[tuple[str, datetime]]:
        """Every object."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        for page in pages:
            for found in page.get("Contents", ()):
                key = found["Key"][len(self.prefix) :]
                if _FILE_KEY.fullmatch(key):
                    yield key, found["LastModified"]


class Offloaded(Codec):
    """Keeps large payloads in a store, and in the job only where they are. It must be the last of a chain.

    Nothing is removed with a job: dead letters, retries, schedules and requeues may still mean it. What no job means any more,
    ``collect`` removes (docs/payloads.md).

    Args:
        store: a ``FileStore``, an ``S3Store``, or a ``PayloadStore`` of your own.
        above: bytes up to which a payload stays in the job.
        timeout: seconds, or a ``timedelta``, that the store has to take or give one. Then it counts as one that does not answer.
            It is meant for a store that hangs, so it should be longer than what the store's own time-outs add up to.

    Example:
        >>> app = EchoMQ(codec=[Compressed(), Offloaded(FileStore("/mnt/payloads"))])
    """

    name = "store"

    def __init__(self, store: PayloadStore, *, above: int = 64 * 1024, timeout: Duration = LIMIT) -> None:
        if not isinstance(store, PayloadStore):
            raise InvalidOption(f"store={shown(store)}: must be a FileStore, an S3Store, or a PayloadStore of your own")
        self.store = store
        self.above: int = check_whole(above, "above", least=0, most=MAX_COUNT)
        self.timeout: float = to_seconds(timeout, "timeout", least=0.001)
        self._threads = StoreThreads(
            repr(store), self.timeout
        )  # of all queues that use it: they wait for the same store

    def __repr__(self) -> str:
        return f"Offloaded({self.store!r}, above={self.above}, timeout={self.timeout:g})"

    def encode(self, body: bytes) -> tuple[bytes, dict[str, Any]] | None:
        """Nothing, and where the bytes are; None if they are few."""
        if len(body) <= self.above:
            return None
        key = f"{datetime.now(UTC):%Y-%m-%d}/{uuid.uuid4().hex}"
        try:
            self.store.put(key, body)
        except Exception as error:  # whatever the store's own library raises
            raise StoreUnavailable(f"{self.store!r} does not take {key}: {said_by(error)}") from error
        return b"", {"key": key, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}

    def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
        """The bytes from the store, if they are those that were put there."""
        key = str(step.get("key"))
        try:
            whole = self.store.get(key)
        except KeyError:
            raise PayloadUnreadable(f"{self.store!r} has no {key}: it was removed, or this is another store") from None
        except Exception as error:  # as above
            raise StoreUnavailable(f"{self.store!r} does not give {key}: {said_by(error)}") from error
        if hashlib.sha256(whole).hexdigest() != step.get("sha256"):
            raise PayloadUnreadable(f"{key} in {self.store!r} is not what was put there: it was changed, or cut short")
        return whole

    def waits(self, size: int) -> bool:
        """Where it may be put into the store."""
        return size > self.above

    def waits_for(self, step: Mapping[str, Any]) -> bool:
        """Always."""
        return True


# -- threads that wait for stores --------------------------------------------------------------------------------------


class _Work:
    """What a thread is to do.

    Attributes:
        do: does it. Raises nothing.
        wanted: whether anybody still waits for it.
        began: the moment (monotonic) at which a thread has begun with it.
    """

    __slots__ = ("began", "do", "wanted")

    def __init__(self, do: Callable[[], None]) -> None:
        self.do = do
        self.wanted = True
        self.began: float | None = None


class StoreThreads:
    """Threads for what waits for a store: of its own, so that a store which hangs holds up nothing else.

    They are daemons: nor does it keep the process from ending. They come when there is work, and end when there has been none for
    a while. A thread that has waited too long is given up: another takes its place. As long as none comes back, fewer and fewer
    do, and in the end one at a time, which finds out when the store is well.

    Any event loop may use them. A copy has threads of its own.

    Args:
        store: what it is called.
        limit: seconds that it has to answer.
    """

    def __init__(self, store: str, limit: float) -> None:
        self._store = store
        self.limit: float = limit
        self.begin()
        _all_threads.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreThreads, (self._store, self.limit)

    def begin(self) -> None:
        """With no thread at all."""
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._threads = 0
        self._begun: dict[_Work, float] = {}
        self._given_up = 0
        self._latest = 0.0

    async def run(self, function: Callable[[], T]) -> T:
        """What the function gives. Who is cancelled waits no longer; what has begun goes on.

        Raises:
            StoreUnavailable: it has not ended in the time that it has, or no thread was free all that time.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()

        def tell(made: T | None, error: BaseException | None) -> None:
            if ended.done():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(cast("T", made))

        def do() -> None:
            made: T | None = None
            error: BaseException | None = None
            try:
                made = function()
            except StopIteration as raised:  # which no future takes
                error = RuntimeError("StopIteration was raised")
                error.__cause__ = raised
            except BaseException as raised:  # the function's own: it is raised where that is waited for
                error = raised
            try:
                loop.call_soon_threadsafe(tell, made, error)
            except RuntimeError:
                pass  # the loop has closed

        work, asked = _Work(do), time.monotonic()
        try:
            with self._lock:
                self._waiting += 1
                self._queue.put(work)
                self._see_to_threads()
            while not ended.done():
                # As long as others are done one after the other, its turn will come.
                since = work.began or max(asked, self._latest)
                left = since + self.limit - time.monotonic()
                if left <= 0:
                    work.wanted = False
                    with self._lock:
                        self._see_to_threads()
                    raise StoreUnavailable(f"{self._store} has not answered within {self.limit:g} s")
                await asyncio.wait({ended}, timeout=left)
            return ended.result()
        finally:
            work.wanted = False
            if not ended.cancel():
                ended.exception()  # which is no news, if nobody waits any more

    def _see_to_threads(self) -> None:
        """Gives up those that have waited too long, and starts as many as there is work for. The lock is held."""
        late = time.monotonic() - self.limit
        for work in [work for work, began in self._begun.items() if began <= late]:
            del self._begun[work]
            self._threads -= 1
            self._given_up += 1
        most = max(_MOST_THREADS - self._given_up, 1)
        idle = self._threads - len(self._begun)
        for _ in range(min(self._waiting - idle, most - self._threads)):
            threading.Thread(target=self._serve, name="echomq-payloads", daemon=True).start()
            self._threads += 1

    def _serve(self) -> None:
        while self._has_served():
            pass

    def _has_served(self) -> bool:
        """Whether its thread goes on: it was not given up meanwhile, and may have more to do."""
        try:
            work = self._queue.get(timeout=_IDLE)
        except Empty:
            with self._lock:
                if self._waiting:  # another has come for it, or nobody yet
                    return True
                self._threads -= 1
                return False
        with self._lock:
            self._waiting -= 1
            if not work.wanted:
                return True
            self._begun[work] = work.began = time.monotonic()
        work.do()
        with self._lock:
            self._latest = time.monotonic()
            if self._begun.pop(work, None) is None:
                self._given_up = max(self._given_up - 1, 0)
                return False
            self._given_up = 0
            with contextlib.suppress(RuntimeError):  # the process ends, or can have no more threads
                self._see_to_threads()  # it was alone with the work while the store was away
        return True


_all_threads: Final[weakref.WeakSet[StoreThreads]] = weakref.WeakSet()


def _in_fork() -> None:
    for threads in list(_all_threads):
        threads.begin()  # a fork has none of them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)


# -- the chain ---------------------------------------------------------------------------------------------------------


class _Wrapped(msgspec.Struct):
    steps: list[dict[str, Any]]
    body: str


class _Envelope(msgspec.Struct, rename={"wrapped": KEY}):
    wrapped: _Wrapped


_envelopes: Final = msgspec.json.Decoder(_Envelope)


class Payloads:
    """A chain of codecs, as one."""

    def __init__(self, codecs: Sequence[Codec]) -> None:
        self.codecs: tuple[Codec, ...] = tuple(codecs)
        self._by_name = {codec.name: codec for codec in codecs}
        store = next((one for one in codecs if isinstance(one, Offloaded)), None)
        # For what takes long. Not the event loop's executor: threads that handlers have there may be waiting for this very thing.
        self._own_threads = StoreThreads("a codec", LIMIT)
        self._threads = self._own_threads if store is None else store._threads

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.codecs))}]"

    @property
    def timeout(self) -> float:
        """Seconds that the store has to take or give one."""
        return self._threads.limit

    @classmethod
    def of(cls, codec: CodecOption) -> Payloads | None:
        """From what a caller gave.

        Raises:
            InvalidOption: it is no codec, nor a list of such.
        """
        if codec is None or isinstance(codec, Payloads):
            return codec
        codecs = [codec] if isinstance(codec, Codec) else codec
        if not isinstance(codecs, (list, tuple)) or not all(isinstance(one, Codec) for one in codecs):
            raise InvalidOption(f"codec={shown(codec)}: must be a Codec, such as Compressed(), or a list of such")
        names = [one.name for one in codecs]
        for one in codecs:
            if not one.name or names.count(one.name) > 1:
                raise InvalidOption(f"codec={shown(codec)}: each must have a name of its own, and they are {names}")
        if Offloaded.name in names[:-1]:
            raise InvalidOption(
                f"codec={shown(codec)}: Offloaded must be the last: what it leaves in the job is only where the payload is"
            )
        return cls(codecs) if codecs else None

    def encode_now(self, text: bytes) -> bytes:
        """JSON text as it is to be stored.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        body, steps = text, []
        for codec in self.codecs:
            try:
                made = codec.encode(body)
            except (
                asyncio.CancelledError,
                GeneratorExit,
                StopIteration,
            ) as error:  # which mean something to who awaits
                raise RuntimeError(f"codec {codec.name!r} raised {type(error).__name__}") from error
            if made is not None:
                body = made[0]
                steps.append({**made[1], "name": codec.name})
        if not steps and not is_wrapped(text):  # what looks like ours, but is not, must not be taken for it
            return text
        return msgspec.json.encode(_Envelope(_Wrapped(steps, base64.b64encode(body).decode())))

    def decode_now(self, stored: bytes) -> bytes:
        """JSON text from what is stored.

        Raises:
            PayloadUnreadable: it cannot be read again. StoreUnavailable: not now, but perhaps later.
        """
        return self._decoded(stored)

    def _decoded(self, stored: bytes, *, soon: bool = False) -> bytes:
        """``soon``: raises _TakesLong rather than inflating much."""
        if not is_wrapped(stored):
            return stored
        wrapped = _unwrapped(stored)
        try:
            body = base64.b64decode(wrapped.body, validate=True)
        except ValueError as error:  # binascii.Error, and others for what is not ASCII
            raise PayloadUnreadable(f"its body is no base64: {error}") from None
        for step in reversed(wrapped.steps):
            name = str(step.get("name"))
            codec = self._by_name.get(name)
            if codec is None:
                known = ", ".join(self._by_name)
                raise PayloadUnreadable(f"it was written with the codec {name!r}, and this program has: {known}")
            try:
                made: object = _soon(codec, body) if soon and type(codec) is Compressed else codec.decode(body, step)
            except (PayloadUnreadable, StoreUnavailable, _TakesLong, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # the codec's own: nobody has cancelled a method that never waits
                raise PayloadUnreadable(f"codec {name!r}: {type(error).__name__}: {said_by(error)}") from error
            if not isinstance(made, bytes):
                raise PayloadUnreadable(f"codec {name!r} has made {type(made).__name__} of it, and not bytes")
            body = made
        return body

    def may_wait(self, size: int) -> bool:
        """Whether to encode so many bytes may need a disk or another machine."""
        for number, codec in enumerate(self.codecs):
            if codec.waits(size + _GROWTH if number else size):
                return True
        return False

    async def encode(self, text: bytes) -> bytes:
        """The same as ``encode_now``; what takes long, in a thread."""
        size = len(text)
        try:
            if self.may_wait(size):
                return await self._threads.run(lambda: self.encode_now(text))
            return (
                self.encode_now(text) if size <= _INLINE else await self._own_threads.run(lambda: self.encode_now(text))
            )
        except SystemExit as error:  # a codec's; as the end of a task of the loop it would be that of the loop
            raise RuntimeError(f"a codec raised SystemExit: {said_by(error)}") from error

    async def decode(self, stored: bytes) -> bytes:
        """The same as ``decode_now``; what takes long, in a thread."""
        try:
            if self.is_elsewhere(stored):
                return await self._threads.run(lambda: self.decode_now(stored))
            if len(stored) <= _INLINE:
                try:
                    return self._decoded(stored, soon=True)
                except _TakesLong:
                    pass
            return await self._own_threads.run(lambda: self.decode_now(stored))
        except SystemExit as error:  # as above
            raise PayloadUnreadable(f"a codec raised SystemExit: {said_by(error)}") from error

    def is_elsewhere(self, stored: bytes) -> bool:
        """Whether reading it waits for a disk or another machine."""
        if not is_wrapped(stored):
            return False
        steps = _unwrapped(stored).steps
        known = ((self._by_name.get(str(step.get("name"))), step) for step in steps)
        return any(codec is not None and codec.waits_for(step) for codec, step in known)


CodecOption: TypeAlias = Codec | Sequence[Codec] | Payloads | None
"""How payloads are stored: a codec, or several, each working on what the one before it has made; None: as they are."""


class _TakesLong(Exception):
    """It grows to more than is inflated where it stands."""


def _soon(codec: Compressed, body: bytes) -> bytes:
    whole = _inflated(body, min(codec.most, _INLINE_INFLATED))
    if whole is None:
        raise _TakesLong
    return whole


def is_wrapped(stored: bytes) -> bool:
    """Whether it begins as a codec writes; another program may have put blanks between."""
    return _MARK.match(stored) is not None


def _unwrapped(stored: bytes) -> _Wrapped:
    try:
        wrapped = _envelopes.decode(stored).wrapped
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError is a DecodeError
        raise PayloadUnreadable(f"it begins as a codec writes, and goes on otherwise: {error}") from None
    names: set[str] = set()
    for step in wrapped.steps:
        name = str(step.get("name"))
        if name in names:  # no chain has one twice, and inflating again and again has no bound
            raise PayloadUnreadable(f"its steps name the codec {name!r} more than once")
        names.add(name)
    return wrapped


def wrapped_steps(data: Any) -> list[str] | None:
    """The names of the codecs that have written this object; None if none has."""
    if not isinstance(data, dict) or len(data) != 1 or not isinstance(data.get(KEY), dict):
        return None
    steps = data[KEY].get("steps")
    if not isinstance(steps, list):
        return None
    return [str(step.get("name")) for step in steps if isinstance(step, dict)]
