"""Makes the table of the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.db import migrations, models

if TYPE_CHECKING:
    from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """The table as ``OutboxJob`` has it."""

    initial: ClassVar[bool | None] = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="OutboxJob",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("state", models.SmallIntegerField(db_default=0, default=0)),
                ("queue", models.CharField(max_length=255)),
                ("job_id", models.CharField(max_length=255)),
                ("payload", models.TextField()),
                ("attempts", models.IntegerField(db_default=0, default=0)),
                ("claimed_until", models.BigIntegerField(db_default=0, default=0)),
                ("created_at", models.BigIntegerField()),
                ("error", models.TextField(null=True)),
            ],
            options={
                "verbose_name": "outbox job",
                "db_table": "echomq_outbox",
                "indexes": [models.Index(fields=["state", "id"], name="echomq_outbox_line")],
            },
        ),
    ]
