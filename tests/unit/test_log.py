"""What is logged seldom."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from echomq._log import Seldom


def test_each_text_is_said_once_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("echomq._log.time", SimpleNamespace(monotonic=lambda: now))
    seldom = Seldom()
    with caplog.at_level(logging.WARNING, "echomq"):
        for _ in range(3):
            seldom.error("queue %s: %s", "q", "cut")
            seldom.warning("queue %s: %s", "q", "refused")
            now += 10
        assert [(record.levelname, record.message) for record in caplog.records] == [
            ("ERROR", "queue q: cut"),
            ("WARNING", "queue q: refused"),
        ]
        assert {record.funcName for record in caplog.records} == {"test_each_text_is_said_once_a_minute"}
        now += 30
        seldom.error("queue %s: %s", "q", "cut")
        assert len(caplog.records) == 3


def test_texts_that_are_never_the_same_fill_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("echomq._log.time", SimpleNamespace(monotonic=lambda: now))
    seldom = Seldom()
    with caplog.at_level(logging.WARNING, "echomq"):
        for number in range(100):
            seldom.error("queue q: %d", number)
        assert len(caplog.records) == 10
        now += 60
        seldom.error("queue q: %d", 7)
        assert len(caplog.records) == 11
