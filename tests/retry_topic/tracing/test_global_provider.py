"""The command line and the dashboard make spans if the process has a tracer provider. OpenTelemetry takes one provider
in a process, so each test has a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BEGINNING = """
    import sys
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from retry_topic import connect
    from retry_topic.message import Message
    from retry_topic.message.encoding import encode_body
    from retry_topic.message.headers import RetryState, write
    from wheel_sched.cli import main
    from wheel_sched.store import Item

    url, exporter = sys.argv[1], InMemorySpanExporter()
    TRACE = "0af7651916cd43dd8448eb211c80319c"


    def set_provider():
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)


    def bury(connection):
        connection.broker.create_topic("orders")
        state = RetryState(id="a", attempt=1, original_topic="orders", trace_step=f"00-{TRACE}-b7ad6b7169203331-01")
        body = encode_body(Message("orders", b"1", None, write((), state)))
        store = connection.store
        store.bury([(Item("a.1", store.now_ms(), body, "orders"), "max-attempts: TimeoutError")])


    def report():
        for span in exporter.get_finished_spans():
            print("span", span.name, *(f"{link.context.trace_id:032x}" for link in span.links))
"""
COMMAND = """
    with connect(url) as connection:
        bury(connection)
    if {provider}:
        set_provider()
    sys.argv = ["wheel-sched", "--store", url, "replay", "a.1", "--yes"]
    try:
        main()
    finally:
        report()
"""
OPERATION = """
    from retry_topic.management.dead_letter_operations import REPLAY, ReplayDeadLetters
    from retry_topic.dashboard.opening import SharedConnection
    from wheel_sched.management.operations import OperationBook, OperationRunner

    set_provider()
    with connect(url) as opened:
        bury(opened)
        connection = SharedConnection(opened.store, opened.broker, owned=False)
        book = OperationBook(opened.store)
        runner = OperationRunner(opened.store, [ReplayDeadLetters(connection)])
        begun = book.create(REPLAY, {{"search": "topic:orders"}}, "ada")
        while (found := book.get(begun.id)).is_open:
            if found.state == "ready":
                book.confirm(found.id, "bob", found.version)
            runner.run_once()
    report()
"""


def spans_of(program: str, folder: Path, **values: object) -> list[str]:
    """Run a program with an embedded store. Returns its lines about spans."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(BEGINNING) + textwrap.dedent(program).format(**values), "utf-8")
    done = subprocess.run(
        [sys.executable, script, f"embedded:{folder / 'data'}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("span ")]


@pytest.mark.parametrize("provider", [True, False])
def test_a_replay_by_the_command_line_has_a_span(tmp_path: Path, provider: bool) -> None:
    """With a tracer provider, the replay has a span that links to the last span of the letter. Without one, it has
    none."""
    expected = ["span replay orders 0af7651916cd43dd8448eb211c80319c"] if provider else []
    assert spans_of(COMMAND, tmp_path, provider=provider) == expected


def test_a_replay_by_an_operation_of_the_dashboard_has_a_span(tmp_path: Path) -> None:
    """A replay by an operation of the dashboard has the same span as a replay by the command line."""
    assert spans_of(OPERATION, tmp_path) == ["span replay orders 0af7651916cd43dd8448eb211c80319c"]
