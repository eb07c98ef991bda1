import importlib.util
import os
from pathlib import Path

BASE_DIR = Path(__file__).parents[1]

SECRET_KEY = "an example's, known to all"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "project.urls"
INSTALLED_APPS = ["echomq.integrations.django", "shop"]
if importlib.util.find_spec("django.tasks") is None:  # Django 5.2: the package django-tasks
    INSTALLED_APPS.append("django_tasks")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", BASE_DIR / "shop.sqlite3"),
        "OPTIONS": {"timeout": 20},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

ECHOMQ = {"URL": os.environ.get("ECHOMQ_URL", "embedded://shop")}
TASKS = {"default": {"BACKEND": "echomq.integrations.django.EchoMQBackend", "QUEUES": ["reports"]}}
