"""The dashboard inside a Django project, below /wheel. A project has this in its wsgi.py.

gunicorn --threads 8 django_app:application # over redis://localhost:6379/0, or the address in WHEEL_STORE
"""

from __future__ import annotations

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from starlette.requests import Request

from wheel_sched.dashboard import Visitor, dashboard_wsgi


def home(_: HttpRequest) -> HttpResponse:
    return HttpResponse("the dashboard is at /wheel/")


if not settings.configured:  # a project has a module of settings
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost"], SECRET_KEY=os.urandom(16).hex())
urlpatterns = [path("", home)]
django = get_wsgi_application()


def visitor(request: Request) -> Visitor | None:
    """Who sent the request. A project reads its session here; the WSGI environment is in the scope."""
    name = request.scope["wsgi_environ"].get("REMOTE_USER", "")
    return Visitor(name, "operate") if name in ("ada", "bob") else None


wheel = dashboard_wsgi(
    os.environ.get("WHEEL_STORE", "redis://localhost:6379/0"), access=visitor, right="operate", hosts=["localhost"]
)


def application(environ, start_response):  # noqa: ANN001, ANN201 - WSGI
    """Requests below /wheel go to the dashboard, all others to Django."""
    found = environ["PATH_INFO"]
    if found != "/wheel" and not found.startswith("/wheel/"):
        return django(environ, start_response)
    script = environ.get("SCRIPT_NAME", "") + "/wheel"
    below = {**environ, "SCRIPT_NAME": script, "PATH_INFO": found.removeprefix("/wheel") or "/"}
    return wheel(below, start_response)
