"""The dashboard inside a Flask application, below /wheel, with a password file.

wheel-sched dashboard-password ada --right operate --file users
flask --app flask_app run # over redis://localhost:6379/0, or the address in WHEEL_STORE
"""

from __future__ import annotations

import os

from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from wheel_sched.dashboard import PasswordFile, dashboard_wsgi

app = Flask(__name__)
wheel = dashboard_wsgi(
    os.environ.get("WHEEL_STORE", "redis://localhost:6379/0"),
    access=PasswordFile(os.environ.get("WHEEL_USERS", "users")),
    right="operate",
)
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/wheel": wheel})


@app.get("/")
def home() -> str:
    return "the dashboard is at /wheel/"
