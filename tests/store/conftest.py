"""Fixtures for the store tests: a client, a queue to run scripts on, a server behind TLS."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.store.scripts import Queue
from tests.support.server import Server


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as made:
        yield made


@pytest.fixture
def queue(client: redis.Redis) -> Queue:
    return Queue(client)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``cert.pem`` and ``key.pem`` for 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    openssl = shutil.which("openssl")
    assert openssl is not None, "no openssl on PATH: install it (Debian: apt-get install openssl)"
    command = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=echomq-test"
    subprocess.run(
        [openssl, *command.split(), "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def tls_url(certificate: Path, make_server: Callable[..., Server]) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    make_server(
        "redis",
        config={
            "tls-port": str(port),
            "tls-cert-file": str(certificate / "cert.pem"),
            "tls-key-file": str(certificate / "key.pem"),
            "tls-auth-clients": "no",
        },
    )
    return f"rediss://127.0.0.1:{port}/0"
