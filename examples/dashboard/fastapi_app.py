"""The dashboard inside a FastAPI application, below /wheel, for users whom the application knows.

uvicorn fastapi_app:app # over redis://localhost:6379/0, or the address in WHEEL_STORE
"""

from __future__ import annotations

import os

from fastapi import FastAPI, Request

from wheel_sched.dashboard import Visitor, dashboard

app = FastAPI()
STAFF = {"ada": "operate", "bob": "read"}


def visitor(request: Request) -> Visitor | None:
    """Who sent the request. Here a proxy in front of the application has signed the user in and names the user."""
    name = request.headers.get("x-forwarded-user", "")
    return Visitor(name, STAFF[name]) if name in STAFF else None


app.mount(
    "/wheel",
    dashboard(os.environ.get("WHEEL_STORE", "redis://localhost:6379/0"), access=visitor, right="operate"),
)


@app.get("/")
def home() -> dict[str, str]:
    return {"dashboard": "/wheel/"}
