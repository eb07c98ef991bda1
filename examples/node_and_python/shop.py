"""The Python side: prices orders, and has Node write the letter."""

from __future__ import annotations

import os
from typing import TypedDict

from echomq import EchoMQ

app = EchoMQ(os.environ.get("ECHOMQ_URL", "redis://localhost:6379/0"), prefix="bull")

PRICES = {"tea": 450, "coffee": 520}


class Priced(TypedDict):
    cents: int
    letter: str


@app.task(queue="orders", attempts=3)
async def price(order: str, customer: str, article: str, pieces: int) -> Priced:
    cents = PRICES[article] * pieces
    # An id of its own: if this run is repeated, the letter is not.
    letter = await app.queue("letters").add(
        "letter",
        {"customer": customer, "text": f"{pieces} x {article} is {cents} cents."},
        job_id=f"letter-{order}",
    )
    return {"cents": cents, "letter": letter.id}
