from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False, auto_created=True, verbose_name="ID")),
                ("number", models.IntegerField(unique=True)),
                ("receipt", models.TextField(blank=True)),
                ("reminders", models.IntegerField(default=0)),
            ],
        ),
    ]
