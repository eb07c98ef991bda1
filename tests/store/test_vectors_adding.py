"""Deduplicated adds by our scripts: vectors 38-42 of the protocol, every mode beside every state of the owner, and beside Node.

The second half does the same steps by Node and by our scripts, as ``test_vectors_side_by_side`` does, and compares every key.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import redis

from tests.store.scripts import Dump, Outcome, Queue, T, completed, failed, job_args
from tests.store.test_vectors_side_by_side import Both, Player, both, peer

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

__all__ = ["both", "peer"]  # fixtures

HOUR = 3_600_000


def add(queue: Queue, de: dict[str, Any], name: str = "job", data: str = "{}", **options: Any) -> tuple[str, int]:
    """Adds one job; gives what the script answered: an id and a code."""
    [_, job_id, code] = queue.add_many([job_args(name, data, de=de, **options)])
    return job_id, code


def ttl(queue: Queue, de: str = "D") -> int:
    """Milliseconds for which the id is held, -1 for no time of its own, -2 if it is not."""
    return int(queue.command("PTTL", "~de:" + de))


# -- the vectors ---------------------------------------------------------------------------------------------------------


def test_38_simple(queue: Queue) -> None:
    assert add(queue, {"id": "D"}) == ("1", 1)
    queue.new_events()
    assert add(queue, {"id": "D"}) == ("1", 2)
    assert queue.get("de:D") == "1"
    assert ttl(queue) == -1
    assert queue.get("1")["deid"] == "D"
    assert queue.get("id") == "2"
    assert queue.get("wait") == ["1"]
    assert queue.get("2") is None
    assert queue.new_events() == [["deduplicated", "jobId", "1", "deduplicationId", "D", "deduplicatedJobId", "2"]]
    queue.fetch()
    queue.finish(completed("1", queue.token))
    assert queue.get("de:D") is None


def test_39_throttle(queue: Queue) -> None:
    assert add(queue, {"id": "T", "ttl": 5000}) == ("1", 1)
    queue.fetch()
    queue.finish(completed("1", queue.token))
    assert queue.get("de:T") == "1"
    assert 0 < ttl(queue, "T") <= 5000
    assert add(queue, {"id": "T", "ttl": 5000}) == ("1", 2)


def test_40_debounce(queue: Queue) -> None:
    de = {"id": "E", "ttl": 5000, "extend": True, "replace": True}
    assert add(queue, de, delay=5000) == ("1", 1)
    queue.command("PEXPIRE", "~de:E", 1000)
    queue.new_events()
    assert add(queue, de, "second", delay=5000) == ("2", 1)
    assert queue.get("1") is None
    assert queue.get("de:E") == "2"
    assert ttl(queue, "E") > 4000
    assert [job_id for job_id, _ in queue.get("delayed")] == ["2"]
    assert queue.new_events() == [
        ["removed", "jobId", "1", "prev", "delayed"],
        ["deduplicated", "jobId", "2", "deduplicationId", "E", "deduplicatedJobId", "1"],
        ["added", "jobId", "2", "name", "second"],
        ["delayed", "jobId", "2", "delay", str(T + 5000)],
    ]


def test_41_keep_last_if_active(queue: Queue) -> None:
    de = {"id": "K", "keepLastIfActive": True}
    assert add(queue, de) == ("1", 1)
    queue.fetch()
    token = queue.token
    assert add(queue, de, "second", '{"n":2}') == ("1", 2)
    queue.new_events()
    assert add(queue, de, "third", '{"n":3}') == ("1", 2)
    assert queue.new_events() == [["deduplicated", "jobId", "1", "deduplicationId", "K", "deduplicatedJobId", "3"]]
    stored = queue.get("dn:K")
    assert stored == {"name": "third", "data": '{"n":3}', "opts": stored["opts"], "jid": "3", "owner": "1"}
    queue.finish(completed("1", token))
    assert queue.new_events()[:3] == [
        ["added", "jobId", "3", "name", "third"],
        ["waiting", "jobId", "3"],
        ["completed", "jobId", "1", "returnvalue", "null", "prev", "active"],
    ]
    assert (queue.get("de:K"), queue.get("dn:K"), queue.get("wait")) == ("3", None, ["3"])
    assert queue.get("3")["deid"] == "K"


LATEST = {"id": "K", "keepLastIfActive": True}


def two_at_once(queue: Queue, *, by_hand: bool) -> dict[str, str]:
    """Jobs 1 and 2 run, and 3 is kept. 2 holds the id that 1 has held: 1 was retried, or it was freed by hand. Gives tokens."""
    add(queue, LATEST)
    first = queue.fetch().ids
    tokens = {"1": queue.token}
    if by_hand:
        queue.run("removeDeduplicationKey-1", "K", "")
    else:
        queue.finish(failed("1", tokens["1"], "bad"))
    assert add(queue, LATEST) == ("2", 1)
    first += queue.fetch().ids
    tokens["2"] = queue.token
    assert add(queue, LATEST, "kept") == ("2", 2)
    if not by_hand:
        queue.run("reprocessJob-10", "1", "")
        first += queue.fetch().ids
        tokens["1"] = queue.token
    assert (first, queue.get("de:K"), queue.get("dn:K")["owner"]) == (["1", "2", *first[2:]], "2", "2")
    return tokens


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("kind", ["completed", "failed"])
def test_what_is_kept_waits_for_the_end_of_the_holder(queue: Queue, by_hand: bool, kind: str) -> None:
    def end(job_id: str, token: str) -> Outcome:
        return completed(job_id, token) if kind == "completed" else failed(job_id, token, "bad")

    tokens = two_at_once(queue, by_hand=by_hand)
    queue.finish(end("1", tokens["1"]))
    assert (queue.get("de:K"), queue.get("wait"), queue.get("dn:K")["jid"]) == ("2", None, "3")
    queue.finish(end("2", tokens["2"]))
    assert (queue.get("de:K"), queue.get("wait"), queue.get("dn:K")) == ("3", ["3"], None)


def test_both_ends_in_one_call_add_it_once(queue: Queue) -> None:
    tokens = two_at_once(queue, by_hand=True)
    queue.finish(*(completed(job_id, tokens[job_id]) for job_id in "21"))
    assert (queue.get("de:K"), queue.get("wait"), queue.get("dn:K")) == ("3", ["3"], None)


def test_a_holder_that_is_not_live_any_more_is_not_waited_for(queue: Queue) -> None:
    add(queue, LATEST)
    queue.fetch()
    token = queue.token
    add(queue, LATEST, "kept")
    queue.add("ended", job_id="ended")
    queue.fetch()
    queue.finish(completed("ended", queue.token))
    queue.command("SET", "~de:K", "ended")
    queue.finish(completed("1", token))
    assert (queue.get("de:K"), queue.get("dn:K")) == ("2", None)


def test_what_was_kept_for_one_that_has_ended_goes_with_the_holder(queue: Queue) -> None:
    """It was kept for 1; the id was freed by hand, 2 holds it, and 1 ends: from there on it is kept for 2."""
    add(queue, LATEST)
    queue.fetch()
    token = queue.token
    add(queue, LATEST, "kept")
    queue.run("removeDeduplicationKey-1", "K", "")
    assert add(queue, LATEST) == ("3", 1)
    queue.finish(completed("1", token))
    assert queue.get("dn:K")["owner"] == "3"
    assert queue.remove("3") == 1
    assert queue.get("de:K") is queue.get("dn:K") is None


@pytest.mark.parametrize("how", ["remove", "drain", "clean"])
@pytest.mark.parametrize("held_by", ["nobody", "another"])
def test_what_was_kept_goes_with_the_job_when_its_id_was_freed_by_hand(queue: Queue, how: str, held_by: str) -> None:
    add(queue, LATEST)
    queue.fetch()
    token = queue.token
    add(queue, LATEST, "kept")
    queue.finish(Outcome("retry", "1", token))
    queue.run("removeDeduplicationKey-1", "K", "")
    if held_by == "another":
        queue.command("SET", "~de:K", "other")
    match how:
        case "remove":
            assert queue.remove("1") == 1
        case "drain":
            queue.run("drain-9", "wait", 0, "", "")
        case "clean":
            queue.run("cleanJobs-12", "wait", 0, "", 0, "")
    assert queue.get("1") is queue.get("dn:K") is None
    assert queue.get("de:K") == (None if held_by == "nobody" else "other")


@pytest.mark.parametrize(
    ("lifo", "line"), [("null", ["2", "other"]), ("false", ["2", "other"]), ("true", ["other", "2"])]
)
def test_the_next_job_goes_to_the_front_by_its_options_alone(queue: Queue, lifo: str, line: list[str]) -> None:
    add(queue, {"id": "K"})
    queue.fetch()
    token = queue.token
    queue.add("other", job_id="other")
    queue.command("HSET", "~dn:K", "name", "kept", "data", "{}", "opts", f'{{"lifo":{lifo}}}', "jid", "2")
    queue.finish(completed("1", token))
    assert queue.get("wait") == line


def test_the_next_job_never_writes_over_one_that_has_its_id_by_now(queue: Queue) -> None:
    de = {"id": "K", "keepLastIfActive": True}
    add(queue, de)
    queue.fetch()
    token = queue.token
    add(queue, de, "kept", '{"n":2}')
    queue.command("HSET", "~dn:K", "jid", "mine")
    queue.add("other", job_id="mine")
    for taken in ("4", "5"):  # the counter went back
        queue.command("HSET", f"~{taken}", "name", "old")
    queue.finish(completed("1", token))
    assert queue.get("mine")["name"] == "other"
    assert (queue.get("de:K"), queue.get("wait"), queue.get("id")) == ("6", ["6", "mine"], "6")
    assert (queue.get("6")["name"], queue.get("6")["data"]) == ("kept", '{"n":2}')


def test_42_replace_beside_a_waiting_owner(queue: Queue) -> None:
    add(queue, {"id": "R", "replace": True})
    queue.new_events()
    assert add(queue, {"id": "R", "replace": True}, delay=100) == ("1", 2)
    assert queue.new_events() == []


def test_reschedule(queue: Queue) -> None:
    add(queue, {"id": "D", "reschedule": True}, delay=1000)
    queue.clock = T + 100
    queue.new_events()
    assert add(queue, {"id": "D", "reschedule": True}, delay=7000) == ("1", 2)
    assert queue.new_events() == [
        ["deduplicated", "jobId", "1", "deduplicationId", "D", "deduplicatedJobId", "2"],
        ["delayed", "jobId", "1", "delay", str(T + 7100)],
    ]
    assert queue.get("1")["delay"] == "7000"
    assert queue.get("delayed") == [("1", (T + 7100) * 4096)]
    assert queue.get("marker") == [("1", T + 7100)]
    assert add(queue, {"id": "D", "reschedule": True}, due=T + 300) == ("1", 2)  # sooner, and by its moment
    assert queue.get("delayed") == [("1", (T + 300) * 4096)]
    assert queue.get("marker") == [("1", T + 300)]


# -- every mode, every state of the owner --------------------------------------------------------------------------------

MODES: dict[str, dict[str, Any]] = {
    "simple": {"id": "D"},
    "throttle": {"id": "D", "ttl": HOUR},
    "extend": {"id": "D", "ttl": HOUR, "extend": True},
    "replace": {"id": "D", "replace": True},
    "replace ttl": {"id": "D", "ttl": HOUR, "replace": True},
    "debounce": {"id": "D", "ttl": HOUR, "extend": True, "replace": True},
    "latest": {"id": "D", "keepLastIfActive": True},
    "latest replace": {"id": "D", "keepLastIfActive": True, "replace": True},
    "reschedule": {"id": "D", "reschedule": True},
    "reschedule ttl": {"id": "D", "ttl": HOUR, "reschedule": True},
}
STATES = ["waiting", "prioritized", "delayed", "active", "completed", "failed", "removed", "trimmed", "no hash"]


def bring(queue: Queue, state: str, de: dict[str, Any]) -> None:
    """Adds job ``a``, which holds the id as this mode has it, and brings it into this state."""
    delay, priority = 5000 if state == "delayed" else 0, 2 if state == "prioritized" else 0
    assert add(queue, de, "first", job_id="a", delay=delay, priority=priority) == ("a", 1)
    if state in ("active", "completed", "failed", "trimmed"):
        queue.fetch()
    if state == "completed":
        queue.finish(completed("a", queue.token))
    if state == "failed":
        queue.finish(failed("a", queue.token, "bad"))
    if state == "trimmed":
        queue.finish(completed("a", queue.token, rule="0;;"))
    if state == "removed":
        queue.remove("a")
    if state == "no hash":
        queue.command("DEL", "~a")
        queue.command("LREM", "~wait", 0, "a")
    queue.new_events()


@pytest.mark.parametrize(("mode", "state"), list(product(MODES, STATES)))
def test_every_mode_beside_every_state(queue: Queue, mode: str, state: str) -> None:
    de = MODES[mode]
    bring(queue, state, de)
    held_before = ttl(queue)
    answer = add(queue, de, "second", job_id="b", delay=9000)
    events = [entry[0] for entry in queue.new_events()]
    timed = "ttl" in de
    if state == "removed" or (state in ("completed", "failed", "trimmed", "no hash") and not timed):
        # Nobody holds it, or nobody who lives.
        assert answer == ("b", 1)
        assert events == ["added", "delayed"]
        assert queue.get("de:D") == "b"
    elif state == "delayed" and de.get("replace"):
        assert answer == ("b", 1)
        assert events == ["removed", "deduplicated", "added", "delayed"]
        assert queue.get("de:D") == "b"
        assert queue.get("a") is None
    else:
        assert answer == ("a", 2)
        assert queue.get("de:D") == "a"
        assert queue.get("b") is None
        kept = state == "active" and de.get("keepLastIfActive")
        moved = state == "delayed" and de.get("reschedule")
        silent = de.get("replace") and not kept
        assert events == ([] if silent else ["deduplicated", "delayed"] if moved else ["deduplicated"])
        assert (queue.get("dn:D") is not None) == bool(kept)
        assert queue.get("delayed") == ([("a", (T + (9000 if moved else 5000)) * 4096)] if state == "delayed" else None)
    assert (ttl(queue) > 0) == timed
    if timed:
        assert ttl(queue) <= HOUR
        assert held_before > 0 or state == "removed"
    standing = [queue.state(job_id) for job_id in "ab" if queue.get(job_id) is not None]
    assert "unknown" not in standing


@pytest.mark.parametrize("mode", [mode for mode in MODES if "ttl" in MODES[mode]])
def test_only_extend_begins_the_time_anew(queue: Queue, mode: str) -> None:
    add(queue, MODES[mode], delay=5000)
    queue.command("PEXPIRE", "~de:D", 1000)
    add(queue, MODES[mode], delay=5000)
    assert (ttl(queue) > 1000) == bool(MODES[mode].get("extend"))


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_an_owner_that_has_ended_without_freeing_its_id(queue: Queue, state: str) -> None:
    """As older clients leave it behind: the next add takes the id, and what was kept is dropped."""
    bring(queue, state, {"id": "D"})
    queue.command("SET", "~de:D", "a")
    queue.command("HSET", "~dn:D", "name", "old", "data", "{}", "opts", "{}", "jid", "x")
    assert add(queue, {"id": "D"}) == ("2", 1)
    assert (queue.get("de:D"), queue.get("dn:D")) == ("2", None)
    assert queue.state("a") == state


def test_an_owner_that_is_nonsense_is_nobody(queue: Queue) -> None:
    queue.command("SET", "~de:D", "rubbish")
    assert add(queue, {"id": "D"}) == ("1", 1)
    assert queue.get("de:D") == "1"


def test_replacing_drops_what_was_kept_and_all_keys_of_the_old_one(queue: Queue) -> None:
    add(queue, {"id": "D", "replace": True}, delay=100)
    queue.command("RPUSH", "~1:logs", "line")
    queue.command("HSET", "~dn:D", "name", "old", "data", "{}", "opts", "{}", "jid", "x")
    add(queue, {"id": "D", "replace": True}, delay=100)
    left = {key for key in queue.dump() if key.startswith("bull:q:")}
    assert left == {f"bull:q:{one}" for one in ("2", "de:D", "delayed", "events", "id", "marker", "meta")}


def test_an_id_of_ones_own_comes_first(queue: Queue) -> None:
    """As by the protocol: where a job of the id is there, the deduplication id is not looked at."""
    add(queue, {"id": "D"}, job_id="mine")
    queue.new_events()
    assert add(queue, {"id": "other"}, job_id="mine") == ("mine", 0)
    assert queue.new_events() == [["duplicated", "jobId", "mine"]]
    assert queue.get("de:other") is None
    assert add(queue, {"id": "D"}, job_id="yours") == ("mine", 2)


# -- several in one call -------------------------------------------------------------------------------------------------

LONG = [
    job_args("plain"),
    job_args("a", de={"id": "D"}),
    job_args("b", de={"id": "D"}),
    job_args("late", delay=100),
    job_args("r1", delay=100, de={"id": "R", "replace": True}),
    job_args("r2", delay=200, de={"id": "R", "replace": True}),
    job_args("front", lifo=True),
    job_args("r3", delay=300, de={"id": "R", "replace": True}),
    job_args("mine", job_id="mine"),
    job_args("mine again", job_id="mine"),
    job_args("ranked", priority=3, de={"id": "P"}),
    job_args("front too", lifo=True, de={"id": "F"}),
    job_args("t1", delay=50, de={"id": "T", "ttl": HOUR, "reschedule": True}),
    job_args("t2", delay=70, de={"id": "T", "ttl": HOUR, "reschedule": True}),
    job_args("k", de={"id": "K", "keepLastIfActive": True}),
    job_args("at", due=T + 500, de={"id": "A"}),
    job_args("passed", due=T - 500, de={"id": "B"}),
]


def test_a_bulk_is_as_if_they_came_one_by_one(queue: Queue) -> None:
    def numbers(dumped: Dump) -> Dump:
        return {key: value for key, value in dumped.items() if not key.endswith(":id")}

    def prepared() -> None:
        queue.client.execute_command("FLUSHALL")
        queue.number = 0
        for name in "KD":
            add(queue, {"id": name, "keepLastIfActive": True})
        queue.fetch(2)

    prepared()
    singly: list[Any] = []
    for job in LONG:
        singly += queue.add_many([job])[1:]
    before = queue.dump()
    prepared()
    assert queue.add_many(LONG)[1:] == singly
    assert numbers(queue.dump()) == numbers(before)


def test_a_call_that_is_sent_again_acts_once(queue: Queue) -> None:
    add(queue, {"id": "K", "keepLastIfActive": True})
    queue.fetch()
    jobs = [job_args(de={"id": "K", "keepLastIfActive": True}), *LONG]
    answer = queue.add_many(jobs)
    before = queue.dump()
    queue.number -= 1
    assert queue.add_many(jobs) == answer
    assert queue.dump() == before


def test_the_counter_that_went_back_gives_no_id_twice(queue: Queue) -> None:
    for _ in range(3):
        queue.add()
    queue.command("SET", "~id", 0)
    assert add(queue, {"id": "D"}) == ("4", 1)
    assert queue.get("de:D") == "4"


# -- what is broken ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("de:D", ("RPUSH", "x")),
        ("dn:D", ("SET", "x")),
        ("1", ("SET", "x")),
        ("completed", ("SET", "x")),
        ("failed", ("SET", "x")),
        ("delayed", ("SET", "x")),
        ("prioritized", ("SET", "x")),
        ("active", ("SET", "x")),
    ],
)
def test_what_is_broken_is_named_and_nothing_changes(queue: Queue, key: str, command: tuple[str, ...]) -> None:
    add(queue, {"id": "D"})
    queue.command("DEL", "~" + key)
    queue.command(command[0], "~" + key, *command[1:])
    before = queue.dump()
    with pytest.raises(redis.ResponseError, match=f"BROKEN bull:q:{key} must be a"):
        queue.add_many([job_args(), job_args(de={"id": "D"})])
    assert queue.dump() == before


def test_a_full_memory_refuses_the_add_whole(queue: Queue) -> None:
    add(queue, {"id": "R", "replace": True}, delay=100)
    before = queue.dump()
    queue.client.execute_command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            queue.add_many(LONG)
    finally:
        queue.client.execute_command("CONFIG", "SET", "maxmemory", "0")
    assert queue.dump() == before


# -- only so many may wait -----------------------------------------------------------------------------------------------


def test_a_full_queue_takes_no_more(queue: Queue) -> None:
    jobs = [job_args(), job_args(delay=100), job_args(priority=3), job_args(), job_args(delay=100)]
    assert queue.add_many(jobs, max_size=3)[1:] == ["1", 1, "2", 1, "3", 1, "3", 3, "3", 3]
    assert queue.counts("waiting", "prioritized", "delayed") == [1, 1, 1]
    events = queue.new_events()
    assert queue.add_many([job_args(job_id="x", de={"id": "D"})], max_size=2)[1:] == ["3", 3]
    assert queue.new_events() == []
    assert (len(events), queue.get("de:D"), queue.get("x")) == (6, None, None)
    queue.fetch()  # what runs does not wait
    assert queue.add_many([job_args()], max_size=3)[2] == 1


def test_a_full_queue_still_answers_for_what_is_there(queue: Queue) -> None:
    queue.add_many(
        [job_args(job_id="mine"), job_args(de={"id": "D"}), job_args(delay=50, de={"id": "R", "replace": True})]
    )
    jobs = [
        job_args(job_id="mine"), job_args(de={"id": "D"}), job_args(), job_args(delay=60, de={"id": "R", "replace": True}),
        job_args(de={"id": "new"}),
    ]  # fmt: skip
    assert queue.add_many(jobs, max_size=3)[1:] == ["mine", 0, "2", 2, "3", 3, "7", 1, "3", 3]
    assert queue.counts("waiting", "delayed") == [2, 1]


def test_jobs_that_version_5_has_paused_count(queue: Queue) -> None:
    queue.pause()
    queue.command("RPUSH", "~paused", "x", "y")
    queue.command("HSET", "~x", "name", "n", "data", "{}", "opts", "{}", "timestamp", T, "delay", 0, "priority", 0)
    assert queue.add_many([job_args()], max_size=2)[1:] == ["2", 3]


# -- freeing an id -------------------------------------------------------------------------------------------------------


def free(queue: Queue, de: str, owner: str = "", **call: Any) -> int:
    return int(queue.run("removeDeduplicationKey-1", de, owner, **call)[1])


def test_an_id_is_freed(queue: Queue) -> None:
    add(queue, {"id": "D", "ttl": HOUR})
    assert free(queue, "D", "2") == 0
    assert queue.get("de:D") == "1"
    assert free(queue, "D", "1") == 1
    assert free(queue, "D", "1") == 0
    add(queue, {"id": "D"})
    assert free(queue, "D") == 1
    assert queue.get("wait") == ["2", "1"]


def test_freeing_again_does_not_free_what_came_since(queue: Queue) -> None:
    add(queue, {"id": "D"})
    assert free(queue, "D", lane="a", number=1) == 1
    add(queue, {"id": "D"})
    assert free(queue, "D", lane="a", number=1) == 1
    assert queue.get("de:D") == "2"


def test_an_id_is_freed_whatever_stands_there_and_with_a_full_memory(queue: Queue) -> None:
    queue.command("RPUSH", "~de:D", "x")
    with pytest.raises(redis.ResponseError, match="BROKEN bull:q:de:D must be a string"):
        free(queue, "D", "1")
    queue.client.execute_command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert free(queue, "D") == 1
        assert free(queue, "D") == 0
        assert free(queue, "D", "1") == 0
    finally:
        queue.client.execute_command("CONFIG", "SET", "maxmemory", "0")


# -- beside Node ---------------------------------------------------------------------------------------------------------

Step = tuple[dict[str, Any], dict[str, Any]]


def by_steps(both: Both, steps: list[Any]) -> tuple[list[Any], Dump]:
    """Adds with these deduplications and options; between them ``fetch``, ``complete`` and ``fail`` of a job, or a time."""

    def scenario(player: Player) -> list[Any]:
        answers: list[Any] = []
        fetched = 0
        for step in steps:
            match step:
                case "fetch":
                    fetched += 1
                    answers.append(player.fetch(fetched))
                case "complete", job_id:
                    answers.append(player.complete(job_id, 1, fetched))
                case "fail", job_id:
                    answers.append(player.fail(job_id, "bad", fetched))
                case int():
                    player.clock(T + step)
                case de, opts:
                    answers.append(player.add("a", {"n": len(answers)}, deduplication={"id": "D", **de}, **opts))
        return answers

    return both(scenario)


DELAYED = {"delay": 5000}
SAME: dict[str, list[Any]] = {
    "simple": [({}, {}), ({}, {}), "fetch", ({}, {}), ("complete", "1"), ({}, {})],
    "simple, failed": [({}, {}), "fetch", ("fail", "1"), ({}, {})],
    "retried": [({}, {"attempts": 2}), "fetch", ("fail", "1"), ({}, {}), "fetch", ("fail", "1"), ({}, {})],
    "throttle": [({"ttl": HOUR}, {}), ({"ttl": HOUR}, {}), "fetch", ("complete", "1"), ({"ttl": HOUR}, {})],
    "extend": [({"ttl": HOUR, "extend": True}, {}), ({"ttl": HOUR, "extend": True}, {})],
    "debounce": [({"ttl": HOUR, "extend": True, "replace": True}, DELAYED), 100,
                 ({"ttl": HOUR, "extend": True, "replace": True}, DELAYED)],
    "replace": [({"replace": True}, DELAYED), ({"replace": True}, {"delay": 70}), ({"replace": True}, {"priority": 2}),
                ({"replace": True}, DELAYED)],
    "replace, ttl": [({"ttl": HOUR}, DELAYED), ({"replace": True, "ttl": HOUR}, DELAYED)],
    "replace without ttl": [({"ttl": HOUR}, DELAYED), ({"replace": True}, DELAYED)],
    "replace with ttl one without": [({"replace": True}, DELAYED), ({"replace": True, "ttl": HOUR}, DELAYED)],
    "replace, active": [({"replace": True}, {}), "fetch", ({"replace": True}, DELAYED)],
    "replace, latest": [({"replace": True, "keepLastIfActive": True}, DELAYED),
                        ({"replace": True, "keepLastIfActive": True}, {}), "fetch",
                        ({"replace": True, "keepLastIfActive": True}, DELAYED), ("complete", "2")],
    "latest": [({"keepLastIfActive": True}, {}), ({"keepLastIfActive": True}, {}), "fetch", ({"keepLastIfActive": True}, {}),
               ({"keepLastIfActive": True}, {"priority": 3}), ("complete", "1"), "fetch"],
    "latest, failed": [({"keepLastIfActive": True}, {}), "fetch", ({"keepLastIfActive": True}, {"delay": 50}), ("fail", "1")],
    "latest after throttle": [({"ttl": HOUR}, {}), ({"keepLastIfActive": True}, {}), "fetch", ({"keepLastIfActive": True}, {})],
    "an id of one's own": [({"keepLastIfActive": True}, {"jobId": "x"}), "fetch", ({"keepLastIfActive": True}, {"jobId": "y"}),
                           ({"keepLastIfActive": True}, {"jobId": "x"}), ("complete", "x")],
    "kinds of jobs": [({}, {"priority": 5}), ({}, {"lifo": True}), ({"id": "E"}, {"lifo": True}), ({"id": "F"}, DELAYED)],
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_same_as_node(both: Both, name: str) -> None:
    by_steps(both, SAME[name])


RESCHEDULED = {"reschedule": True}
SAME_AS_6: dict[str, list[Any]] = {
    "reschedule": [(RESCHEDULED, DELAYED), 100, (RESCHEDULED, {"delay": 9000}), (RESCHEDULED, {"delay": 9000}),
                   (RESCHEDULED, {"delay": 9000, "timestamp": T - 500})],
    "reschedule at once": [(RESCHEDULED, DELAYED), (RESCHEDULED, {}), "fetch"],
    "reschedule among others": [({"id": "E"}, {"delay": 9000}), (RESCHEDULED, DELAYED), (RESCHEDULED, {"delay": 9000})],
    "reschedule, waiting": [(RESCHEDULED, {}), (RESCHEDULED, DELAYED)],
    "reschedule, active": [(RESCHEDULED, {}), "fetch", (RESCHEDULED, DELAYED)],
    "reschedule, throttle": [({"ttl": HOUR, **RESCHEDULED}, DELAYED), ({"ttl": HOUR, **RESCHEDULED}, {"delay": 10})],
    "reschedule, latest": [({"keepLastIfActive": True, **RESCHEDULED}, DELAYED),
                           ({"keepLastIfActive": True, **RESCHEDULED}, {"delay": 10})],
}  # fmt: skip


@pytest.mark.parametrize("peer", ["bullmq6"], indirect=True)
@pytest.mark.parametrize("name", SAME_AS_6)
def test_the_same_as_node_6(both: Both, name: str) -> None:
    by_steps(both, SAME_AS_6[name])
