"""How one tests such a thing: on real queues, without a server of one's own, and without waiting.

pytest examples/email_fanout
"""

from __future__ import annotations

import pytest
from fanout import Post, app, campaign, mail

from echomq import EchoMQ
from echomq.testing import Kit


@pytest.fixture
def echomq_app() -> EchoMQ:
    return app


@pytest.fixture(autouse=True)
def post(monkeypatch: pytest.MonkeyPatch) -> Post:
    post = Post(refuses=0, loses=0)
    monkeypatch.setattr("fanout.post", post)
    return post


def test_each_reader_gets_a_job(echomq: Kit) -> None:
    echomq.wait(campaign.enqueue("news", ["ada@x.org", "alan@x.org"]))
    echomq.wait(campaign.enqueue("news", ["ada@x.org", "alan@x.org"]))  # twice
    echomq.wait(echomq.run_until_drained())
    echomq.assert_enqueued(mail, {"campaign": "news"}, count=2)
    echomq.assert_enqueued(mail, {"reader": "ada@x.org"}, count=1)
    [first, _] = echomq.enqueued(campaign)
    assert first.progress == {"enqueued": 2, "of": 2}


def test_a_provider_that_is_down_for_a_while(echomq: Kit, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "_refuses", 1.0)
    job = echomq.wait(mail.enqueue("news", "ada@x.org"))
    [run] = echomq.wait(echomq.run_until_drained())
    assert (run.state, run.failed_reason) == ("delayed", "PostError: 503, try again later")
    monkeypatch.setattr(post, "_refuses", 0.0)
    echomq.wait(echomq.advance(seconds=1))
    assert echomq.wait(job.result()) == "mail-1"


def test_an_answer_that_was_lost_sends_nothing_twice(echomq: Kit, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "_loses", 1.0)
    echomq.wait(mail.enqueue("news", "ada@x.org"))
    echomq.wait(echomq.run_until_drained())
    monkeypatch.setattr(post, "_loses", 0.0)
    echomq.wait(echomq.advance(minutes=1))
    assert (post.calls, list(post.mails.values())) == (2, ["ada@x.org"])
