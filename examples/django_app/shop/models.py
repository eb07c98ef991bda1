from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)
    receipt = models.TextField(blank=True)
    reminders = models.IntegerField(default=0)
