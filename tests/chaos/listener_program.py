"""A process that listens and says what it hears: ``python listener_program.py URL SINCE [GROUP]``; a line for each event."""

from __future__ import annotations

import asyncio
import sys

from echomq import QueueEvents
from echomq.events import Custom


def say(line: str) -> None:
    """Says it at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Listens until it is killed."""
    url, since, *group = sys.argv[1:]
    events = QueueEvents("q", connection=url, since=since, group=group[0] if group else None, claim_after=1.0)
    async with events:
        say("ready")
        async for event in events:
            number = event.fields.get("number") if isinstance(event, Custom) else event.kind
            say(f"{event.id} {number}")


if __name__ == "__main__":
    asyncio.run(main())
