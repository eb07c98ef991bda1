"""The tasks of the notebook, for it and for its worker."""

from __future__ import annotations

import os

from echomq import EchoMQ

app = EchoMQ(os.environ.get("ECHOMQ_URL", "embedded://notebook-example"))


@app.task(queue="measuring")
def measure(number: int) -> int:
    return number * number
