"""What retry topics add to `wheel-sched`: commands, settings, checks of `doctor`, a part of `stats`."""

from __future__ import annotations

from retry_topic.management.settings import RetrySettings
from wheel_sched.extensions import Extension, Lazy, Stack

EXTENSION = Extension(
    title="Retry topics",
    commands={
        "demo": Lazy("retry_topic.cli.demo:demo", "Run a demo: a server, failing messages, retries.", "demo"),
        "serve": Lazy("retry_topic.cli.serve:serve", "Run the retry service of consumer groups."),
        "publish": Lazy("retry_topic.cli.publish:publish", "Publish messages, now or later."),
        "topics": Lazy("retry_topic.cli.topics:topics", "List topics, what they hold and what waits for them."),
        "list": Lazy("retry_topic.cli.listing:list_messages", "List messages by due time, dead letters by error."),
        "show": Lazy("retry_topic.cli.show:show", "Show everything about one message."),
        "run-now": Lazy("retry_topic.cli.changing:run_now", "Make messages due now."),
        "reschedule": Lazy("retry_topic.cli.changing:reschedule", "Give messages another due time."),
        "delete": Lazy("retry_topic.cli.changing:delete", "Delete messages for good."),
        "replay": Lazy("retry_topic.cli.replay:replay", "Deliver dead letters again."),
        "operations": Lazy("retry_topic.cli.operations:operations", "Confirm, run and stop long replays."),
        "pause": Lazy("retry_topic.cli.topics:pause", "Hold all messages of a topic."),
        "resume": Lazy("retry_topic.cli.topics:resume", "Deliver the messages of a paused topic again."),
        "keys": Lazy("retry_topic.cli.keys:keys", "List and release ordering keys that wait for a failed message."),
        "history": Lazy("retry_topic.cli.history:history", "Export the result of each attempt."),
        "policy": Lazy("retry_topic.cli.policy:policy", "Explain and simulate retry policies."),
        "kafka": Lazy("retry_topic.cli.kafka:kafka", "Create, measure, replay and check topics on Kafka.", "kafka"),
        "spark": Lazy("retry_topic.spark.cli:spark", "Run jobs on Spark over the store and its history.", "spark"),
    },
    examples=(
        ("demo", "an example with retries"),
        ("publish orders '{\"id\": 1}' --delay 5m", ""),
        ("list --topic orders", "what waits, in order of due time"),
        ("list --dead --group", "what failed, by kind of error"),
        ("replay --fingerprint 3f2a --dry-run", "what a replay would do"),
    ),
    settings=RetrySettings,
    dispatchers=("`wheel-sched serve GROUP`",),
    dispatcher_of="retry_topic.management.untaken:service_for",
    server_checks=("retry_topic.management.checks:hand_over",),
    namespace_checks=("retry_topic.management.checks:retries",),
    stats=("retry_topic.management.checks:retries_in_stats",),
    dashboard="retry_topic.dashboard.part:PART",
    stacks={
        name: Stack(f"retry_topic:cli/stacks/{name}", about, "pip install -e '.[test]' && pytest")
        for name, about in (
            ("redis", "a consumer with retries on Redis Streams"),
            ("kafka", "a consumer with retries on Kafka"),
        )
    },
    packages={
        "airportsdata": "demo",
        "confluent_kafka": "kafka",
        "numpy": "spark",
        "pandas": "spark",
        "pyarrow": "spark",
        "pyspark": "spark",
        "rich": "demo",
    },
)
