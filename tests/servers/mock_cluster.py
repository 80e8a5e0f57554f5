"""librdkafka's own imitation of a Kafka cluster, in this process: both protocols of groups, no transactions.

    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        KafkaBroker(cluster.bootstrap, transactions=False)

Other processes may connect; it ends with this one. A topic that is named without having been created comes into being
with four partitions. Groups rebalance at once, where the imitation by itself waits three seconds for company.

The imitation is in the library that confluent-kafka brings; its Python face can make one, and hand nothing on to it. So
it is made through the library's C interface here (librdkafka's `rdkafka_mock.h`, which calls itself experimental).
Cost: milliseconds and two threads. Any thread may use it; one closes it.
"""

from __future__ import annotations

import ctypes
from functools import cache

from wheel_sched.errors import ConfigError

_PRODUCER = 0  # rd_kafka_type_t: the handle that a cluster hangs on has to be something
_POINTER, _TEXT, _NUMBER = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
# name -> what it returns, what it takes; `int` stands for rd_kafka_resp_err_t too
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
# not in older libraries, which keep to their own idea of these times
_SESSION = "rd_kafka_mock_set_group_consumer_session_timeout_ms"
_HEARTBEAT = "rd_kafka_mock_set_group_consumer_heartbeat_interval_ms"


class MockCluster:
    """An imitation that runs until it is closed.

    Args:
        brokers: how many. Defaults to 1.
        session_timeout_ms: of members in KIP-848's protocol; a classic one says so itself. Defaults to 6 s.
        heartbeat_ms: of members in KIP-848's protocol. Defaults to 500.

    Raises:
        ConfigError: it did not come up, or confluent-kafka is of another build.
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
        """Create a topic, which must not be there yet.

        Raises:
            ConfigError: it is there, or cannot be.
        """
        error = self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        if error:
            why = self._library.rd_kafka_err2str(error).decode()
            raise ConfigError(f"topic {topic!r} could not be created: {why}; nothing was changed")

    def close(self) -> None:
        """End it and what was in its topics. Idempotent."""
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
    """librdkafka, through the extension module that is linked with it: wherever that has it from."""
    from confluent_kafka import cimpl

    library = ctypes.CDLL(cimpl.__file__)
    try:
        for name, (returned, taken) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = returned, taken
    except AttributeError as error:
        raise ConfigError(f"this build of confluent-kafka does not have librdkafka's mock cluster: {error}") from error
    return library
