"""librdkafka's mock of a Kafka cluster, inside this process: both group protocols, no transactions.

    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        KafkaBroker(cluster.bootstrap, transactions=False)

Other processes may connect. The cluster ends with this process. A topic that is used without being created gets four
partitions. Groups rebalance at once; by default the mock cluster would wait three seconds for further members.

The mock cluster is part of librdkafka, which confluent-kafka contains. The Python interface can start a cluster but
cannot configure it. So this module uses librdkafka's C interface (`rdkafka_mock.h`, which calls itself experimental).
A start takes milliseconds, and a cluster has two threads. Any thread may use a cluster, and one thread closes it.
"""

from __future__ import annotations

import ctypes
from functools import cache

from wheel_sched.errors import ConfigError

_PRODUCER = 0  # rd_kafka_type_t: a cluster belongs to a client, of any type
_POINTER, _TEXT, _NUMBER = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
# function -> type of its result, types of its arguments; `int` also stands for rd_kafka_resp_err_t
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "rd_kafka_conf_new": (_POINTER, ()),
    "rd_kafka_conf_set": (_NUMBER, (_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t)),
    "rd_kafka_new": (_POINTER, (_NUMBER, _POINTER, _TEXT, ctypes.c_size_t)),
    "rd_kafka_destroy": (None, (_POINTER,)),
    "rd_kafka_err2str": (_TEXT, (_NUMBER,)),
    "rd_kafka_mock_cluster_new": (_POINTER, (_POINTER, _NUMBER)),
    "rd_kafka_mock_cluster_destroy": (None, (_POINTER,)),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, (_POINTER,)),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, (_POINTER, ctypes.c_int32)),
    "rd_kafka_mock_topic_create": (_NUMBER, (_POINTER, _TEXT, _NUMBER, _NUMBER)),
}
# older libraries do not have these two and use fixed times
_SESSION = "rd_kafka_mock_set_group_consumer_session_timeout_ms"
_HEARTBEAT = "rd_kafka_mock_set_group_consumer_heartbeat_interval_ms"


class MockCluster:
    """A running mock cluster, until `close`.

    Args:
        brokers: number of brokers. Defaults to 1.
        session_timeout_ms: session timeout of members with KIP-848's protocol; members with the classic protocol set
            their own. Defaults to 6,000.
        heartbeat_ms: heartbeat interval of members with KIP-848's protocol. Defaults to 500.

    Raises:
        ConfigError: the cluster did not start, or this build of confluent-kafka has no mock cluster.
    """

    def __init__(self, brokers: int = 1, *, session_timeout_ms: int = 6_000, heartbeat_ms: int = 500) -> None:
        self._library = library = _library()
        why = ctypes.create_string_buffer(512)
        settings = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set(settings, b"log_level", b"0", why, len(why))
        self._handle = library.rd_kafka_new(_PRODUCER, settings, why, len(why))
        self._cluster = self._handle and library.rd_kafka_mock_cluster_new(self._handle, brokers)
        if not self._cluster:
            raise ConfigError(f"librdkafka's mock cluster did not come up: {why.value.decode() or 'no reason given'}")
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        for name, value in ((_SESSION, session_timeout_ms), (_HEARTBEAT, heartbeat_ms)):
            if hasattr(library, name):
                getattr(library, name)(_POINTER(self._cluster), _NUMBER(value))
        self.bootstrap: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic that does not exist yet.

        Raises:
            ConfigError: the topic exists, or cannot be created.
        """
        error = self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        if error:
            why = self._library.rd_kafka_err2str(error).decode()
            raise ConfigError(f"topic {topic!r} could not be created: {why}; nothing was changed")

    def close(self) -> None:
        """End the cluster, which loses its topics and records. Idempotent."""
        cluster, handle, self._cluster, self._handle = self._cluster, self._handle, None, None
        if cluster:
            self._library.rd_kafka_mock_cluster_destroy(cluster)
        if handle:
            self._library.rd_kafka_destroy(handle)

    def __enter__(self) -> MockCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MockCluster {self.bootstrap} {'up' if self._cluster else 'closed'}>"


@cache
def _library() -> ctypes.CDLL:
    """Load librdkafka through confluent-kafka's extension module, which is linked with it."""
    from confluent_kafka import cimpl

    library = ctypes.CDLL(cimpl.__file__)
    try:
        for name, (returned, taken) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = returned, taken
    except AttributeError as error:
        raise ConfigError(f"this build of confluent-kafka does not have librdkafka's mock cluster: {error}") from error
    return library
