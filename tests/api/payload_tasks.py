"""Functions that a process of its own runs."""

from __future__ import annotations

from typing import Any, Literal

from echomq import Job


def shout(job: Job[Any], where: str, times: int = 1) -> list[Any]:
    """Says that it was here in its own data, and what these are."""
    job.update_data({"where": where, "times": times + 1})
    if times < 2:
        raise ValueError("once more")
    return [where.upper(), job.data]


def count(letters: dict[str, int]) -> int:
    return sum(letters.values())


def rate(stars: Literal["good", "bad"]) -> None: ...
