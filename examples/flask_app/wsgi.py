"""What Gunicorn and ``echomq worker`` are pointed at: both need the application."""

from school import create_app, jobs

__all__ = ["app", "jobs"]

app = create_app()
