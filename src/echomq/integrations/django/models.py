"""The outbox as a table of the project's database."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class OutboxJob(models.Model):
    """A job that waits for its sending: see ``echomq.outbox``. Rows are written by ``enqueue_in_transaction``, not by hand.

    Attributes:
        state: 0 waits, 1 was set aside.
        queue, job_id: which job it is.
        payload: the job.
        attempts: how often it was refused.
        claimed_until: until when a relay has it, in milliseconds since 1970.
        created_at: when it was written, in milliseconds since 1970.
        error: why it could not be sent.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    state: models.SmallIntegerField[int, int] = models.SmallIntegerField(default=0, db_default=0)
    queue: models.CharField[str, str] = models.CharField(max_length=255)
    job_id: models.CharField[str, str] = models.CharField(max_length=255)
    payload: models.TextField[str, str] = models.TextField()
    attempts: models.IntegerField[int, int] = models.IntegerField(default=0, db_default=0)
    claimed_until: models.BigIntegerField[int, int] = models.BigIntegerField(default=0, db_default=0)
    created_at: models.BigIntegerField[int, int] = models.BigIntegerField()
    error: models.TextField[str | None, str | None] = models.TextField(null=True)

    class Meta:
        """Its table."""

        app_label = "echomq"
        db_table = "echomq_outbox"
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["state", "id"], name="echomq_outbox_line")]
        verbose_name = "outbox job"

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id}"
