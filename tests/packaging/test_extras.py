"""Each extra of the built wheel, in an environment of its own, is enough for the first example of its page.

The tests' own environment has every package, so it would hide that an extra lacks a package.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.valkey import TemporaryServer, temporary_server

if TYPE_CHECKING:
    from conftest import Installed

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TRACES = "## Traces"

Make = Callable[[str], "Installed"]

# packages come from the registry, or from its cache: the first environment on a machine takes long
pytestmark = [pytest.mark.built, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[TemporaryServer]:
    """The server that takes the place of redis://localhost:6379 in the pages' examples."""
    with temporary_server(tcp=True) as made:
        yield made


def snippet(page: str, heading: str, server: TemporaryServer) -> str:
    """Return the first Python block below a heading of a page, with the address of `server` instead of the reader's
    server."""
    text = (ROOT / page).read_text("utf-8")
    found = BLOCK.search(text, text.index(heading))
    assert found is not None
    return found[1].replace("redis://localhost:6379/", f"{server.tcp_url.removesuffix('0')}")


FIRST = [
    ("embedded,cli", "README.md", "## A consumer"),
    ("celery", "docs/celery.md", "## Install"),
    ("apscheduler,embedded", "docs/apscheduler.md", "# APScheduler"),
    ("kafka,cli", "docs/kafka.md", "# Retry topics"),
    ("dashboard,embedded", "docs/dashboard.md", "## Mount"),
    ("metrics", "docs/operating.md", "## Metrics"),
    ("otel", "docs/operating.md", TRACES),
]
# Other tests check these extras: the first example is a command, or belongs to another extra, or needs Java.
BELOW = {"all", "demo", "redis", "simulation", "spark"}


def test_every_extra_has_a_test() -> None:
    """Each extra in pyproject.toml has a test in this module."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    tested = {extra for extras, _, _ in FIRST for extra in extras.split(",")}
    assert tested | BELOW == set(settings["project"]["optional-dependencies"])


@pytest.mark.parametrize(("extras", "page", "heading"), FIRST)
def test_the_first_snippet_of_a_page_runs_after_its_install_line(
    with_extras: Make, server: TemporaryServer, extras: str, page: str, heading: str
) -> None:
    """A page's first example runs in an environment that has only the extras that the page names."""
    assert f"[{extras}]" in (ROOT / page).read_text("utf-8"), "the page names other extras"
    done = with_extras(extras).python(snippet(page, heading, server))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("README.md", "## A consumer"),
        ("README.md", "## Celery"),
        ("README.md", "## APScheduler"),
        ("docs/kafka.md", "# Retry topics"),
        ("docs/dashboard.md", "## Mount"),
        ("docs/operating.md", "## Metrics"),
        ("docs/operating.md", TRACES),
    ],
)
def test_all_is_enough_for_every_page(with_extras: Make, server: TemporaryServer, page: str, heading: str) -> None:
    """With `wheel-sched[all]` the first Python example below each heading runs."""
    done = with_extras("all").python(snippet(page, heading, server))
    assert done.returncode == 0, done.stderr


def test_redis_is_enough_beside_a_server(with_extras: Make, server: TemporaryServer) -> None:
    """With `wheel-sched[redis]` the README's consumer runs against an existing server."""
    code = snippet("README.md", "## A consumer", server).replace("embedded:./data", server.tcp_url)
    done = with_extras("redis").python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.spark
def test_spark_is_enough_for_a_dataframe(with_extras: Make, server: TemporaryServer) -> None:
    """With `wheel-sched[spark,embedded]` the first example of the Spark page runs."""
    page = (ROOT / "docs/spark.md").read_text("utf-8")
    assert "[spark,embedded]" in page, "the page names other extras"
    made = with_extras("spark,embedded")
    done = made.run(made.bin / "python", "-c", snippet("docs/spark.md", "## Reading and writing", server))
    assert done.returncode == 0, done.stderr


def test_demo_is_enough_to_see_it_work(with_extras: Make) -> None:
    """With `wheel-sched[demo]` the demo runs and ends without an error."""
    made = with_extras("demo")
    done = made.run(made.bin / "wheel-sched", "demo", "--count", "5", "--json")
    assert done.returncode == 0, done.stderr


def test_a_celery_task_is_held_and_listed(with_extras: Make, server: TemporaryServer) -> None:
    """A Celery task with a countdown is held in the store, and `celery wheel list` shows it."""
    made = with_extras("celery")
    code = snippet("docs/celery.md", "## Install", server)
    (made.elsewhere / "shop.py").write_text(code, "utf-8")
    sent = made.python("import shop\nprint(shop.app.send_task('shop.ship', countdown=3600).id)")
    assert sent.returncode == 0, sent.stderr
    listed = made.run(made.bin / "celery", "-A", "shop", "wheel", "list", "--json")
    assert sent.stdout.strip() in listed.stdout, listed.stderr


def test_celery_over_rabbitmq_does_without_the_redis_transport(with_extras: Make, server: TemporaryServer) -> None:
    """With a RabbitMQ broker, the Celery integration does not import kombu's module for Redis brokers."""
    done = with_extras("celery").python(
        "import sys\n"
        "from celery import Celery\n"
        "from wheel_sched_celery import install\n"
        "from wheel_sched_celery.message.stored_forms import RedisQueue\n"
        "rabbit = Celery('shop', broker='amqp://localhost')\n"
        f"install(rabbit, url={server.tcp_url!r})\n"
        "assert not RedisQueue.serves(rabbit.connection())\n"
        "assert 'kombu.transport.redis' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_simulator_runs_in_an_empty_environment(with_extras: Make) -> None:
    """With `wheel-sched[simulation]` the simulator runs histories of retry topics."""
    code = (
        "import sys\n"
        "from wheel_sched.simulation.__main__ import main\n"
        "sys.exit(main(['--world', 'retry', '--seeds', '3']))"
    )
    done = with_extras("simulation").python(code)
    assert done.returncode == 0, done.stderr
    assert "3 histories, 0 with violations" in done.stdout


PAGES = """
import asyncio
from wheel_sched.dashboard import dashboard, dashboard_wsgi, everyone
from wheel_sched.store import Item, open_store

async def ask(app, path):
    sent = []

    async def receive():
        await asyncio.Event().wait()  # the client stays

    async def send(message):
        sent.append(message)

    scope = {{"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "scheme": "http"}}
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])

with open_store({url!r}) as store:
    store.schedule([Item("order-42", 9_000_000_000_000, b"x", "orders")])
    app = dashboard({url!r}, access=everyone("read"))
    for part in app.dashboard.parts:
        for page in part.pages:
            if "{{" not in page.path:
                status, body = asyncio.run(ask(app, page.path))
                assert status == 200, (page.path, status, body)
    for name in ("dashboard.css", "dashboard.js", "htmx.min.js", "htmx-sse.min.js", "icon.svg"):
        assert asyncio.run(ask(app, f"/assets/{{name}}"))[0] == 200, name
    dashboard_wsgi({url!r}, access=everyone("read"))
    app.close()
"""


def test_dashboard_is_enough_for_its_pages(with_extras: Make, server: TemporaryServer) -> None:
    """With `wheel-sched[dashboard]` each page and asset is served: the wheel has the templates and the assets."""
    done = with_extras("dashboard").python(PAGES.format(url=server.tcp_url))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("list", "embedded"),
        ("--store redis://localhost stats", "redis"),
        ("serve billing", "embedded"),
        ("publish orders x --create", "embedded"),
        ("--store redis://localhost backup file", "redis"),
        ("--store redis://localhost list", "redis"),
        ("demo --count 1", "demo"),
        ("dashboard", "dashboard"),
        ("dashboard-password ada", "dashboard"),
        ("aps list", "apscheduler"),
        ("spark capacity", "spark"),
    ],
)
def test_a_command_names_the_extra_it_needs(with_extras: Make, command: str, extra: str) -> None:
    """If a command needs another extra, it prints one line that names the extra, exits with 2, and creates no file."""
    made = with_extras("cli")
    done = made.run(made.bin / "wheel-sched", *command.split())
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"[{extra}]" in done.stderr
    assert done.returncode == 2
    assert list(made.elsewhere.iterdir()) == []


def test_doctor_names_the_extra_that_the_store_needs(with_extras: Make) -> None:
    """`doctor` runs the checks that need no further package, and shows the install command as the fix."""
    made = with_extras("cli")
    done = made.run(made.bin / "wheel-sched", "doctor")
    assert "Traceback" not in done.stderr
    assert "ok       python" in done.stdout
    assert 'fix: pip install "wheel-sched[embedded]"' in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("extras", "url", "needed"),
    [
        ("cli", "embedded:data", "embedded"),
        ("redis", "embedded:data", "embedded"),
        ("cli", "redis://localhost", "redis"),
    ],
)
def test_connect_names_the_extra_it_needs(with_extras: Make, extras: str, url: str, needed: str) -> None:
    """`connect` raises an error that names the extra which the address needs. It does so too if the Redis client is
    installed and only the embedded server's program is missing."""
    made = with_extras(extras)
    done = made.python(f"from retry_topic import connect\nconnect({url!r})")
    assert f"wheel-sched[{needed}]" in done.stderr.splitlines()[-1]
    assert not (made.elsewhere / "data").exists()
