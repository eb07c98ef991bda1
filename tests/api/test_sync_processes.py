"""Sync calls and processes: forks, signals, the end of the interpreter. Each program warns of everything and must be silent."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from echomq import EchoMQ
from tests.support.server import Server

BEGIN = """
import atexit, multiprocessing, os, signal, sys, threading, time, warnings
from echomq import Connection, EchoMQ, JobSpec, SyncQueue

# of a fork beside other threads Python 3.12 and newer warn whatever one does about it
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

app = EchoMQ(sys.argv[1])
queue = app.sync.queue("letters")

def forked(do):
    pid = os.fork()
    if pid == 0:
        do()
        sys.exit(0)
    return pid

def ended(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

"""


def run(program: str, url: str, timeout: float = 40) -> str:
    """Runs a program as a reader would, with all warnings as errors; gives what it printed."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEGIN + textwrap.dedent(program), url],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    return ran.stdout


def texts(url: str) -> list[str]:
    with EchoMQ(url).sync as sync:
        return sorted(str(job.data) for job in sync.queue("letters").jobs("waiting"))


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "app.sync.close()", "queue.pause(); queue.resume()"])
def test_a_script_simply_ends(url: str, end: str) -> None:
    assert run(f"print(queue.add('print').id)\n{end}", url) == "1\n"


def test_what_is_registered_for_the_end_still_can_make_calls(url: str) -> None:
    assert (
        run("atexit.register(lambda: print(queue.add('print', 'last').id))\nqueue.add('print', 'first')", url) == "2\n"
    )
    assert texts(url) == ["first", "last"]


def test_a_script_ends_silently_also_while_other_threads_wait(url: str) -> None:
    program = """
        job = queue.add("print")
        begun = threading.Event()
        def wait():
            begun.set()
            job.result()
        threading.Thread(target=wait, daemon=True).start()
        begun.wait()
        queue.count()
    """
    run(program, url, timeout=20)


def test_a_script_ends_also_when_its_server_does_not_answer(make_server: Callable[..., Server]) -> None:
    server = make_server()
    program = """
        queue.add("print")
        os.kill(PID, signal.SIGSTOP)
        threading.Thread(target=queue.count, daemon=True).start()
    """
    run(program.replace("PID", str(server.pid)), server.url, timeout=20)
    server.resume()


def test_ctrl_c_ends_the_wait_and_leaves_it_usable(url: str) -> None:
    program = """
        job = queue.add("print")
        for _ in range(3):
            threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGINT)).start()
            try:
                job.result(timeout=20)
            except KeyboardInterrupt:
                print("stopped", queue.count())
        assert not app.connection.portal._thread.calls
    """
    assert run(program.replace("signal.raise_signal(", "os.kill(os.getpid(), "), url) == "stopped 1\n" * 3


def test_a_signal_handler_may_make_calls_in_the_middle_of_another(url: str) -> None:
    program = """
        heard = []
        signal.signal(signal.SIGALRM, lambda *_: heard.append(queue.add("print", "alarm").id))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        for number in range(300):
            queue.count()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert queue.count() == len(heard) > 0
    """
    run(program, url)


LEAKS = """
        import asyncio, gc, linecache
        import echomq._portal

        class Stopped(BaseException):
            pass

        def stop(*_):
            raise Stopped

        sys.unraisablehook = id  # one that comes while something is collected is lost, as all are there: no word of it

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def tasks():
            return [task for task in gc.get_objects() if isinstance(task, asyncio.Task) and not task.done()]

        def settled(before):
            # nothing is left but what was there before: of threads, descriptors and calls
            until = time.monotonic() + 20
            while threading.active_count() > 1 or descriptors() > before or tasks():
                assert time.monotonic() < until, (threading.enumerate(), descriptors(), before, tasks())
                time.sleep(0.001)

        app.sync.close()
        settled(before := descriptors())
"""


@pytest.mark.parametrize("does", ["raises", "calls"])
def test_a_signal_at_each_line_of_a_call(url: str, does: str) -> None:
    """The whole of a call, from the start of the thread to its end; the handler raises, or makes a call of its own."""
    program = (
        LEAKS
        + """
        here = None
        def tracer(frame, event, arg):
            global here, left
            name = frame.f_code.co_filename
            if not name.endswith(("_portal.py", "threading.py")) or frame.f_code.co_name == "is_closed":
                return tracer if name == "<string>" or name.endswith(("sync.py", "app.py")) else None
            if event == "line":
                text = linecache.getline(name, frame.f_lineno)
                # there no signal can come: none comes between the two steps of these lines and the one before
                if not any(step in text for step in ("is_given_up = True", "_thread is found", "_thread = made", "with ")):
                    left -= 1
                    if left == 0:
                        sys.settrace(None)
                        here = (name, frame.f_lineno, text.strip())
                        os.kill(os.getpid(), signal.SIGUSR1)
                        return None
            return tracer

        signal.signal(signal.SIGUSR1, stop if DOES == "raises" else lambda *_: app.sync.queue("letters").count())
        at = 0
        while True:
            queue = app.sync.queue("letters")
            at += 1
            left, here = at, None
            sys.settrace(tracer)
            try:
                queue.count()
                app.sync.close()
            except Stopped:
                pass
            except RuntimeError as error:
                assert "closed" in str(error), here  # the app was closed under the handler
            finally:
                sys.settrace(None)
            if here is None:
                break
            try:
                assert app.sync.queue("letters").count() == 0
                app.sync.close()
                settled(before)
            except BaseException:
                print(here, file=sys.stderr)
                raise
        assert at > 40, at
        print("all")
        """.replace("DOES", repr(does))
    )
    assert run(program, url) == "all\n"


@pytest.mark.parametrize("rounds", [400, pytest.param(30_000, marks=pytest.mark.torture)])
@pytest.mark.parametrize("does", ["raises", "raises again", "calls"])
def test_signals_at_random_moments_leave_nothing_behind(url: str, does: str, rounds: int) -> None:
    program = (
        LEAKS
        + """
        import contextlib, random
        seed = random.randrange(10**9)
        chance = random.Random(seed)

        def handler(*_):
            if not armed:
                pass
            elif DOES == "calls":
                with contextlib.suppress(RuntimeError):  # the app was closed under it, and the queue is closed
                    app.sync.queue("letters").count()
            else:
                raise Stopped

        signal.signal(signal.SIGALRM, handler)
        stopped = 0
        for number in range(ROUNDS):
            try:
                try:
                    armed = True
                    again = 0.00003 if DOES == "raises again" else 0
                    signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.004 + 0.00001, again)
                    for _ in range(3):
                        queue = app.sync.queue("letters")
                        queue.count()
                        if chance.random() < 0.5:
                            app.sync.close()
                finally:
                    armed = False  # no call: nothing can come before it
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Stopped:
                stopped += 1
            except RuntimeError as error:
                assert "closed" in str(error), (seed, repr(error))
            if number % 20 == 0:
                try:
                    app.sync.close()  # one that was given up may have been about to close the queue still
                    assert app.sync.queue("letters").count() == 0
                    app.sync.close()
                    settled(before)
                except BaseException:
                    print(seed, number, file=sys.stderr)
                    raise
        app.sync.close()
        settled(before)
        assert stopped or DOES == "calls"
        print("all")
        """.replace("DOES", repr(does)).replace("ROUNDS", str(rounds))
    )
    assert run(program, url, timeout=40 + rounds / 20) == "all\n"


def test_a_forked_child_has_a_portal_of_its_own_and_its_parent_keeps_its(url: str) -> None:
    program = """
        queue.add("print", "before")
        def in_child():
            for number in range(20):
                queue.add("print", f"child {number}")
        pids = [forked(in_child) for _ in range(3)]
        for number in range(20):
            queue.add("print", f"parent {number}")
        for pid in pids:
            ended(pid)
        queue.add("print", "after")
    """
    run(program, url)
    ours = [f"parent {number}" for number in range(20)]
    assert texts(url) == sorted(
        ["before", "after", *ours, *(f"child {number}" for number in range(20) for _ in range(3))]
    )


def test_a_fork_before_the_first_call(url: str) -> None:
    run("ended(forked(lambda: queue.add('print', 'child')))\nqueue.add('print', 'parent')", url)
    assert texts(url) == ["child", "parent"]


def test_a_child_that_makes_no_call_disturbs_nothing(url: str) -> None:
    run("queue.add('print', 'a')\nended(forked(lambda: None))\nqueue.add('print', 'b')", url)
    assert texts(url) == ["a", "b"]


def test_a_grandchild(url: str) -> None:
    program = """
        def in_grandchild():
            queue.add("print", "grandchild")
        def in_child():
            queue.add("print", "child")
            ended(forked(in_grandchild))
            queue.add("print", "child again")
        queue.add("print", "parent")
        ended(forked(in_child))
        app.sync.close()
        queue = app.sync.queue("letters")
        queue.add("print", "parent again")
    """
    run(program, url)
    assert texts(url) == ["child", "child again", "grandchild", "parent", "parent again"]


@pytest.mark.parametrize("rounds", [8, pytest.param(300, marks=pytest.mark.torture)])
def test_forks_while_other_threads_call(url: str, rounds: int) -> None:
    program = """
        rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
        going, made = True, [0] * 4
        def busy(of):
            while going:
                queue.add("print", "parent")
                made[of] += 1
                SyncQueue("others", connection=Connection(sys.argv[1])).close()
        threads = [threading.Thread(target=busy, args=(of,)) for of in range(4)]
        for thread in threads:
            thread.start()
        def in_child():
            signal.alarm(30)  # a child that hangs ends with an error
            queue.add("print", "child")
            app.sync.close()
        for _ in range(rounds):
            ended(forked(in_child))
        going = False
        for thread in threads:
            thread.join()
        print(sum(made))
    """
    made = int(run(program.replace("ROUNDS", str(rounds)), url, timeout=600))
    found = texts(url)
    assert (found.count("child"), found.count("parent")) == (rounds, made)


def test_a_fork_of_a_user_of_an_embedded_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOMQ_HOME", str(tmp_path))
    program = """
        queue.add("print", "parent")
        pids = [forked(lambda: queue.add("print", "child")) for _ in range(2)]
        for pid in pids:
            ended(pid)
        print([job.data for job in queue.jobs("waiting")])
    """
    assert run(program, "embedded://forks") == "['parent', 'child', 'child']\n"


def test_multiprocessing_by_fork(url: str) -> None:
    program = """
        def adding(number):
            return queue.add("print", number).id

        queue.add("print", "parent")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert len(set(pool.map(adding, range(10)))) == 10
            pool.close()
            pool.join()
        queue.add("print", "parent")
    """
    run(program, url)
    assert texts(url) == sorted([*map(str, range(10)), "parent", "parent"])
