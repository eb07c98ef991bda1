from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt

from echomq.integrations.django import enqueue_in_transaction, enqueue_on_commit
from shop.models import Order
from shop.tasks import count_orders, mail_receipt, send_reminder


@csrf_exempt
def place_order(request: HttpRequest) -> HttpResponse:
    """The order and its job are committed together, or neither."""
    try:
        with transaction.atomic():
            order = Order.objects.create(number=int(request.POST["number"]))
            job_id = enqueue_in_transaction(mail_receipt, order.pk)
            enqueue_on_commit(send_reminder, order.number)  # lost if the process dies right after the commit
    except IntegrityError:
        return JsonResponse({"error": "there is such an order"}, status=409)
    return JsonResponse({"job": job_id}, status=201)


def show_order(request: HttpRequest, number: int) -> HttpResponse:
    order = get_object_or_404(Order, number=number)
    return JsonResponse({"receipt": order.receipt, "reminders": order.reminders})


@csrf_exempt
def ask_for_report(request: HttpRequest) -> HttpResponse:
    """A task of Django's own framework, which EchoMQ's workers run."""
    result = count_orders.enqueue()
    return JsonResponse({"report": result.id}, status=202)


def show_report(request: HttpRequest, result_id: str) -> HttpResponse:
    result = count_orders.get_result(result_id)
    return JsonResponse({"status": result.status, "orders": result.return_value if result.is_finished else None})


@csrf_exempt
async def remind(request: HttpRequest, number: int) -> HttpResponse:
    """An async view, best under ASGI."""
    job = await send_reminder.enqueue(number)
    return JsonResponse({"job": job.id}, status=202)
