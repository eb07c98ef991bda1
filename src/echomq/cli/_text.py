"""How commands write things for people: numbers, times, tables, and texts that came from elsewhere."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STEPS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)?")
_UNITS: Final = {"ms": 0.001, "": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def harmless(text: str) -> str:
    """Without what would move the cursor, colour the terminal or turn the text round: names, data and reasons are not ours."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str, most: int = 80) -> str:
    """The text's first line that has something in it, cut where it is too long."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    line = harmless(line.replace("\t", " "))
    return line if len(line) <= most else line[: most - 1] + "…"


def to_json(value: object) -> str:
    """Compact JSON. Whole numbers keep every digit; what has no UTF-8 form, or acts on a terminal, is escaped."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def jobs(number: int) -> str:
    """A number of jobs in words."""
    return "1 job" if number == 1 else f"{number:,} jobs"


def duration(seconds: float) -> str:
    """A length of time, as precise as it matters."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    at = next(at for at, (size, _) in enumerate(_STEPS) if seconds >= size - 0.05)
    (size, unit), (smaller, smaller_unit) = _STEPS[at], _STEPS[at + 1]
    whole, rest = divmod(round(seconds / smaller), round(size / smaller))
    return f"{whole:,} {unit}" + (f" {rest} {smaller_unit}" if rest else "")


def age(moment: datetime, now: datetime | None = None) -> str:
    """How long ago, or in how long."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    return f"in {duration(-seconds)}" if seconds < -0.001 else f"{duration(max(seconds, 0.0))} ago"


def local(moment: datetime) -> str:
    """A moment in the zone of this machine, and how long ago it was."""
    here = moment.astimezone()
    return f"{here:%Y-%m-%d %H:%M:%S}.{here.microsecond // 1000:03d} {here:%Z} ({age(moment)})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines with aligned columns; those in ``right`` to the right."""
    widths = [max(_width(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = []
        for at, cell in enumerate(row):
            blanks = " " * (widths[at] - _width(cell))
            cells.append(blanks + cell if at in right else cell + blanks)
        return "  ".join(cells).rstrip()

    return [line(head), *map(line, rows)]


def _width(text: str) -> int:
    """The columns that it takes on a terminal: letters of East Asia and most pictures take two, marks on letters none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.category(character) in ("Mn", "Me") for character in text)


def to_seconds(text: str) -> float:
    """The seconds that ``90``, ``1.5h`` or ``7d`` mean.

    Raises:
        ValueError: it means none; says what would.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r}: must be seconds, or a number with ms, s, m, h, d or w, such as 90, 1.5h or 7d")
    return float(found[1]) * _UNITS[found[2] or ""]


def to_moment(text: str) -> datetime:
    """The moment that ``2026-12-01T09:30`` or ``2026-12-01 09:30+01:00`` means; without a zone, in this machine's.

    Raises:
        ValueError: it means none; says what would.
    """
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r}: must be a moment such as 2026-12-01T09:30, or with its zone 2026-12-01T09:30+01:00"
        ) from None
