"""The shop's tasks. EchoMQ imports the modules `tasks` of all installed apps."""

try:
    from django.tasks import task
except ModuleNotFoundError:  # Django 5.2
    from django_tasks import task
from django.db.models import F

from echomq.integrations.django import get_app
from shop.models import Order

app = get_app()


@app.task(queue="mails", attempts=5, backoff=1)
def mail_receipt(order: int) -> str:
    """A plain function runs in a thread, with a database connection of its own."""
    found = Order.objects.get(pk=order)
    found.receipt = f"receipt of order {found.number}"
    found.save(update_fields=["receipt"])
    return found.receipt


@app.task(queue="mails")
async def send_reminder(number: int) -> int:
    """An async one runs in the event loop, and uses Django's asynchronous calls."""
    return await Order.objects.filter(number=number).aupdate(reminders=F("reminders") + 1)


@task(queue_name="reports")
def count_orders() -> int:
    """A task of Django's own framework: it knows nothing of EchoMQ."""
    return Order.objects.count()
