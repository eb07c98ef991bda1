"""The plugin itself is used here as its users use it; a run of EchoMQ's own tests installs it with the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from echomq.testing import Server


@pytest.fixture(scope="session")
def throw_away() -> Iterator[Server]:
    """One for the session, as the plugin has one."""
    with Server() as server:
        yield server
