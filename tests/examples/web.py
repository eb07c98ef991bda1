"""Web servers as users start them: processes of their own, at a free port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.support.command import environment

EXAMPLES = Path(__file__).parents[2] / "examples"


@asynccontextmanager
async def program(
    folder: Path, *words: str, url: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[list[str]]:
    """A module of Python that runs in a folder, until the end of the block: then it gets SIGTERM, and must end well.

    Gives the lines that it has written to its standard error so far.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *words, cwd=folder, env=environment(url, env),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    said: list[str] = []
    assert process.stderr is not None
    listening = asyncio.create_task(_listen(process.stderr, said))
    try:
        yield said
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() in (0, -signal.SIGTERM), "".join(said)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await listening


async def _listen(stream: asyncio.StreamReader, said: list[str]) -> None:
    async for line in stream:
        said.append(line.decode())  # noqa: PERF401  # it is read meanwhile


@asynccontextmanager
async def site(
    folder: Path, *words: str, url: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A web server, from when it answers, and a client of it. ``PORT`` in the words stands for its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    async with (
        program(folder, *(word.replace("PORT", port) for word in words), url=url, env=env) as said,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=20,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        ) as client,
    ):
        async with asyncio.timeout(30):
            while True:
                try:
                    await client.get("/")
                    break
                except httpx.TransportError:
                    assert not any("Error" in line for line in said), "".join(said)
                    await asyncio.sleep(0.02)
        yield client
        assert not any("Traceback" in line for line in said), "".join(said)
