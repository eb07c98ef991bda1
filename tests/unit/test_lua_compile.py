"""Every assembled script is Lua 5.1 that a server can load, and a mistake in it is reported where we made it."""

from __future__ import annotations

from typing import Any

import pytest
from lupa import lua51

from echomq._lua.loader import Script, scripts

SCRIPTS = sorted(scripts().values(), key=lambda found: found.name)


def load_error(source: str) -> str:
    """What Lua 5.1 says against this text, as a server would; "" if it takes it."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    load: Any = lua.eval("function(text) return loadstring(text, '@user_script') end")
    loaded = load(source)
    return str(loaded[1]) if isinstance(loaded, tuple) else ""


@pytest.mark.parametrize("found", SCRIPTS, ids=lambda found: found.name)
def test_compiles(found: Script) -> None:
    message = load_error(found.source)
    assert message == "", found.locate(message)


@pytest.mark.parametrize("found", SCRIPTS, ids=lambda found: found.name)
def test_a_mistake_is_reported_where_we_made_it(found: Script) -> None:
    lines = found.source.splitlines()
    # Nonsense in place of an empty line or a comment is a syntax error of that very line.
    for at in [number for number, text in enumerate(lines) if text == "" or text.startswith("--")]:
        message = load_error("\n".join([*lines[:at], "local = 1", *lines[at + 1 :]]))
        path, line = found.origin[at]
        assert found.locate(message) == f"{path}:{line}"


def test_the_check_itself_notices_an_error() -> None:
    assert load_error("local = 1").startswith("user_script:1:")
