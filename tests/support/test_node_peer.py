"""The Node peer answers, says what was thrown, can be killed, and never outlives the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.node_peer import UNDEFINED, VERSIONS, NodeDied, NodeError, NodePeer, Version
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.mark.parametrize("version", VERSIONS)
async def test_answers_and_errors(server: Server, version: Version) -> None:
    with NodePeer(version, server.socket_path) as node:
        queue = node.queue("q")
        job_id = await queue.add("echo", {"a": "\ud800😀"})
        assert (await queue.job(job_id))["data"] == {"a": "\ud800😀"}
        assert await node("pause", queue="q", prefix="bull") is UNDEFINED
        with pytest.raises(NodeError, match="no job 99"):
            await queue.remove("99")


async def test_a_killed_peer_leaves_no_caller_waiting(server: Server) -> None:
    with NodePeer("bullmq6", server.socket_path) as node:
        queue = node.queue("q")
        asked = node.send("wait", queue="q", prefix="bull", id=await queue.add("echo"), seconds=60)
        node.kill()
        with pytest.raises(NodeDied):
            asked.result(5)
        with pytest.raises(NodeDied):
            await queue.counts()
        assert not node.is_running


async def test_it_dies_with_a_killed_test_process(server: Server) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.support.node_peer import NodePeer\n"
        "p = NodePeer('bullmq6', Path(sys.argv[1])); p.send('counts', queue='q', prefix='bull').result(20)\n"
        "print(p.pid, flush=True); input()"
    )
    command = [sys.executable, "-c", script, str(server.socket_path)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        assert psutil.pid_exists(pid)
        tests.kill()
    await wait_until(lambda: not psutil.pid_exists(pid), what="the Node process has ended")
