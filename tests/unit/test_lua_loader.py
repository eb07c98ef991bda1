"""The loader joins a script with what it uses, names its keys and arguments, and knows where an error comes from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lupa import lua51

from echomq._lua.loader import LuaHeaderError, Script, _File, _parse, assemble, script, scripts


def made(name: str, text: str, **libs: str) -> Script:
    parsed: dict[str, _File] = {lib: _parse(f"lib/{lib}.lua", body) for lib, body in libs.items()}
    return assemble(name, _parse(f"scripts/{name}.lua", text), parsed)


def test_names_are_made_from_the_header() -> None:
    found = made(
        "move-2", "--- Moves.\n--- @key wait\n--- @key active\n--- @arg id\n--- @arg count number\n--- @rest\nreturn 1"
    )
    assert found.keys == ("wait", "active")
    assert found.args == ("base", "clock_given", "id", "count")
    assert found.source.splitlines()[:3] == [
        "local wait, active = KEYS[1], KEYS[2]",
        "local base, clock_given, id, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])",
        "local rest = 5",
    ]


def test_a_script_runs_with_its_names() -> None:
    found = made("sum-1", "--- @key total\n--- @arg a number\n--- @rest\nreturn total .. base .. a + ARGV[rest]")
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.execute("KEYS, ARGV = {'k'}, {'base', '', '3', '4'}")
    assert lua.execute(found.source) == "kbase7"


def test_libraries_come_once_each_after_what_they_use() -> None:
    found = made(
        "go-0",
        "--- @use top side\nreturn top.word .. side.word",
        top="--- @use ground side\nreturn { word = ground.word .. side.word }",
        side="--- @use ground\nreturn { word = ground.word .. 's' }",
        ground="return { word = 'g' }",
    )
    order = [line for line in found.source.splitlines() if line.endswith("= (function()")]
    assert order == ["ground = (function()", "side = (function()", "top = (function()"]
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.execute("KEYS, ARGV = {}, {}")
    assert lua.execute(found.source) == "ggsgs"


def test_functions_that_a_script_does_not_reach_are_left_out() -> None:
    found = made(
        "go-0",
        "--- @use tool far\nreturn tool.used(1) .. tool.LAST",
        tool=(
            "local M = {}\n\nlocal function inner(x)\n  return x + 1\nend\n\nlocal function only_far(x)\n  return x\nend\n\n"
            "function M.used(x)\n  return inner(x)\nend\n\nfunction M.unused(x)\n  return far.away(only_far(x))\nend\n\n"
            "function M.short(x) return x end\n\nM.LAST = 'z'   -- not M.short\n\nreturn M"
        ),
        far="local M = {}\n\nfunction M.away(x)\n  return tool.short(x)\nend\n\nreturn M",
    )
    for kept in ("function M.used", "function inner"):
        assert kept in found.source
    for left_out in ("M.unused", "only_far", "function M.short", "M.away"):
        assert left_out not in found.source.replace("-- not M.short", "")
    assert "local M = { used = nil, LAST = nil }" in found.source
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.execute("KEYS, ARGV = {}, {}")
    assert lua.execute(found.source) == "2z"


def test_a_library_that_only_rare_ones_use_is_rare() -> None:
    found = made(
        "go-0",
        "--- @use top plain\nif false then top.run() end\nreturn plain.word",
        top="--- @rare\n--- @use ground\nlocal M = {}\n\nfunction M.run()\n  return ground.word\nend\n\nreturn M",
        ground="error('nobody needs it')",
        plain="return { word = 'w' }",
    )
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.execute("KEYS, ARGV = {}, {}")
    assert lua.execute(found.source) == "w"


def test_rare_libraries_are_built_when_they_are_called() -> None:
    """They find one another, and common ones find them, whatever stands first."""
    found = made(
        "go-0",
        "--- @use common far\nlocal said = tostring(built) .. common.run()\nreturn said .. far.word() .. built",
        common="--- @use far\nlocal M = {}\n\nfunction M.run()\n  return far.word()\nend\n\nreturn M",
        far=(
            "--- @rare\n--- @use near\nbuilt = (built or 0) + 1\nlocal M = {}\n\nfunction M.word()\n  return near.word()\nend\n\n"
            "return M"
        ),
        near="--- @rare\nlocal M = {}\n\nfunction M.word()\n  return 'w'\nend\n\nreturn M",
    )
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.execute("KEYS, ARGV = {}, {}")
    assert lua.execute(found.source) == "nilww1"


def test_a_name_that_hides_a_rare_library_is_refused() -> None:
    far = "--- @rare\nlocal M = {}\n\nfunction M.word()\n  return 'w'\nend\n\nreturn M"
    with pytest.raises(LuaHeaderError, match="hides the library"):
        made("go-0", "--- @use far\nlocal far = far.word()\nreturn far", far=far)


@pytest.mark.parametrize(
    ("name", "text", "libs", "says"),
    [
        ("a-1", "return 1", {}, "the name says 1 keys, the header has 0"),
        ("a-0", "--- @use b\n", {"b": "--- @use c\n", "c": "--- @use b\n"}, "b -> c -> b"),
        ("a-0", "--- @use b\n", {}, "lib/b.lua, which does not exist"),
        ("a-0", "--- @kee b\n", {}, "unknown tag @kee"),
        ("a-0", "--- @arg b int\n", {}, "has kind 'int'"),
        ("a-0", "--- @lane odd\n", {}, "@lane 'odd'"),
        ("a-0", "--- @lane\n", {}, "needs @key calls"),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused(name: str, text: str, libs: dict[str, str], says: str) -> None:
    with pytest.raises(LuaHeaderError, match=says.replace("(", r"\(")):
        made(name, text, **libs)


def test_a_lane_script_answers_from_the_record_before_anything_else() -> None:
    kept = "return { find = function() return 'kept' end }"
    found = made("a-1", "--- @key calls\n--- @lane\nerror('ran')", calls_kept=kept)
    assert found.lane
    assert found.args == ("base", "clock_given", "lane", "number", "resent")
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.execute("KEYS, ARGV = {'k'}, {'base', '', 'l', '1', ''}")
    assert lua.execute(found.source) == "kept"


def test_an_error_points_to_the_line_that_we_wrote() -> None:
    found = made("a-0", "--- @use b\n\nerror(b)", b="local M = {}\n-- more\nreturn M")
    line = 1 + found.source.splitlines().index("error(b)")
    assert found.locate(f"ERR user_script:{line}: here script: f00, on @user_script:{line}.") == "scripts/a-0.lua:3"
    line = 1 + found.source.splitlines().index("-- more")
    assert found.locate(f"ERR user_script:{line}: there") == "lib/b.lua:2"
    assert found.locate("WRONGTYPE Operation against a key") == ""
    assert found.locate("user_script:99999: no such line") == ""


def test_every_line_of_every_script_leads_home() -> None:
    folder = Path(sys.modules["echomq._lua.loader"].__file__ or "").parent
    for found in scripts().values():
        lines = found.source.splitlines()
        assert len(lines) == len(found.origin), found.name
        for number, text in enumerate(lines, start=1):
            path, home = found.locate(f"user_script:{number}: x").rsplit(":", 1)
            if home != "0":  # 0: generated
                assert (folder / path).read_text("utf-8").splitlines()[int(home) - 1] == text.replace("rare.", "")


def test_a_script_is_found_by_name() -> None:
    found = script("moveToActive-11")
    assert found is scripts()["moveToActive-11"]
    assert len(found.sha) == 40


def test_writes_the_assembled_scripts_for_linters(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "echomq._lua.loader", "--assemble", tmp_path], check=True, timeout=60)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.lua" for name in scripts()}
    assert (tmp_path / "pause-6.lua").read_text("utf-8") == script("pause-6").source
