"""A temporary Kafka broker for tests: one real KRaft node on loopback, run from the published jars.

    with temporary_kafka() as kafka:
        KafkaBroker(kafka.bootstrap)
        kafka.sigkill()
        kafka.restart()  # the same folder and port, so topics, groups and transactions survive

The broker needs Java 17. Its first start also needs Maven (`mvn`), which keeps the jars in its local repository,
`~/.m2`. A start takes four to ten seconds. `mock_kafka` needs neither: it runs librdkafka's mock cluster inside this
process, which has consumer groups but no transactions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers.certificates import PASSWORD, self_signed
from tests.servers.child_supervisor import SupervisedChild
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.folders import temporary_folder
from tests.servers.mock_cluster import MockCluster
from tests.servers.valkey import free_port
from wheel_sched.errors import ConfigError

VERSION = "4.3.1"  # use a newer release when every test passes with it
CONNECTOR = "4.2.0"  # the newest release of Spark's connector whose dependencies are published; Spark 4.3 runs it
START_TIMEOUT_S = 120.0
FETCH_TIMEOUT_S = 600.0
POLL_S = 0.05

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.wheelsched</groupId>
  <artifactId>kafka-broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

# Spark brings the other jars. The token provider's newer releases change nothing that the connector uses.
_CONNECTOR_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.wheelsched</groupId>
  <artifactId>spark-connector</artifactId>
  <version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""
_CONNECTOR_JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)

# Small indexes: with the first record of a log Kafka maps and zeroes its whole index, 10 MB by default, under the
# partition's lock. In a virtual machine's fresh memory this stops the partition for 20 to 60 ms.
_SETTINGS = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},{rest}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},PROXIED://127.0.0.1:{proxy}{tls}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,TLS:SASL_SSL
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={jaas}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
log.dirs={folder}/data
auto.create.topics.enable=false
message.max.bytes=8388608
replica.fetch.max.bytes=8388608
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.session.timeout.ms=6000
group.consumer.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=4
num.replica.fetchers=1
background.threads=2
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=4194304
log.index.size.max.bytes=262144
"""

_TLS = """listener.name.tls.ssl.keystore.type=PKCS12
listener.name.tls.ssl.keystore.location={store}
listener.name.tls.ssl.keystore.password={password}
listener.name.tls.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.tls.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
"""

_GUEST = "guest-of-a-test"
_JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_guest="{_GUEST}";'


class TemporaryKafka:
    """A broker that a test can kill, freeze and restart. `temporary_kafka` makes one.

    The broker ends with this process, even when this process is killed.
    """

    def __init__(self, folder: Path, classpath: str, *, tls: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.sasl_port = free_port()
        self.proxy_port = free_port()
        self.tls_port = free_port() if tls else None
        self._certificate = self_signed(folder) if tls else None
        self._behind_port, controller = free_port(), free_port()
        secured = f",TLS://127.0.0.1:{self.tls_port}" if tls else ""
        self._classpath = classpath
        self._process: SupervisedChild | None = None
        settings = _SETTINGS.format(
            port=self.port,
            sasl=self.sasl_port,
            proxy=self.proxy_port,
            rest=f"PROXIED://127.0.0.1:{self._behind_port},CONTROLLER://127.0.0.1:{controller}{secured}",
            tls=secured,
            controller=controller,
            folder=folder,
            jaas=_JAAS,
        )
        users = []
        if self._certificate is not None:
            settings += _TLS.format(store=self._certificate.store, password=PASSWORD)
            users = ["--add-scram", f"SCRAM-SHA-512=[name=guest,password={_GUEST}]"]
        (folder / "server.properties").write_text(settings)
        form = ["format", "--standalone", "-t", _CLUSTER_ID, "-c", "server.properties", *users]
        self._java("kafka.tools.StorageTool", *form)
        self.restart()

    @property
    def bootstrap(self) -> str:
        """The address of the broker; a restart does not change it."""
        return f"127.0.0.1:{self.port}"

    def as_guest(self, password: str = _GUEST) -> dict[str, str]:
        """Return the settings of a client that logs in as `User:guest`. A client that does not log in may do
        everything."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.sasl_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "guest",
            "sasl.password": password,
        }

    def over_tls(self, authority: Path | None = None) -> dict[str, str]:
        """Return the settings of a client that logs in as `User:guest` over TLS, by SCRAM.

        Args:
            authority: PEM file of the certificates that the client trusts. Defaults to the broker's own.

        Raises:
            ConfigError: the broker has no TLS listener.
        """
        if self._certificate is None:
            raise ConfigError("expected a broker with TLS (temporary_kafka(tls=True)), got: one without")
        return self.as_guest() | {
            "bootstrap.servers": f"127.0.0.1:{self.tls_port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "ssl.ca.location": str(authority or self._certificate.public),
        }

    def proxy(self) -> FaultyProxy:
        """Make a proxy in front of the broker. To clients that connect through the proxy, the broker gives the proxy's
        address.

        Only one proxy may exist at a time.
        """
        return FaultyProxy(f"kafka://127.0.0.1:{self._behind_port}", port=self.proxy_port)

    @property
    def pid(self) -> int | None:
        """The process id of the broker, or None while it is down."""
        return None if self._process is None else self._process.pid

    def restart(self) -> None:
        """Kill the broker if it runs, start it with the same folder and port, and wait until it answers.

        Raises:
            ConfigError: the broker does not start; the message has its output.
        """
        self.sigkill()
        command = self._command("kafka.Kafka", "server.properties")
        self._process = SupervisedChild(command, cwd=self.folder, out=self.folder / "out", env=_environment())
        until_s = time.monotonic() + START_TIMEOUT_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() >= until_s:
                self.sigkill()
                raise ConfigError(f"Kafka did not start; it wrote: {(self.folder / 'out').read_text()[-2000:]}")
            time.sleep(POLL_S)

    def sigkill(self) -> None:
        """Kill the broker as a crash would, and wait for its end. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def freeze(self) -> None:
        """Suspend the broker's process until `thaw`. Its connections stay open."""
        if self._process is not None:
            self._process.freeze()

    def thaw(self) -> None:
        """Let a frozen broker continue."""
        if self._process is not None:
            self._process.thaw()

    def _command(self, *arguments: str) -> list[str]:
        return [
            "java",
            *_MEMORY,
            *_COLLECTOR,
            "-XX:TieredStopAtLevel=1",  # the optimizing compiler costs more time than it saves in a test
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            self._classpath,
            *arguments,
        ]

    def _java(self, *arguments: str) -> None:
        done = subprocess.run(
            self._command(*arguments),
            check=False,
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        if done.returncode:
            raise ConfigError(f"{arguments[0]} failed: {(done.stdout + done.stderr)[-2000:]}")

    def _serves(self) -> bool:
        """Return whether the broker accepts connections and answers a metadata request."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2):
                pass
        except OSError:
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def __repr__(self) -> str:
        return f"<TemporaryKafka port={self.port} {'down' if self._process is None else 'alive'}>"


_MEMORY = ("-Xms1g", "-Xmx1g", "-XX:MetaspaceSize=128m")  # the values of Kafka's own start script
# this garbage collector pauses the broker for 1 to 2 ms, others for 20 to 100; a Java without it uses its default
_COLLECTOR = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UseShenandoahGC")
_CLUSTER_ID = "d2hlZWwtc2NoZWQtdGVzdA"  # 16 bytes in base64; a cluster id must not begin with a dash


def _environment() -> dict[str, str]:
    """The environment of this process without JDK_JAVA_OPTIONS, which could select a second garbage collector."""
    return {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}


@contextlib.contextmanager
def temporary_kafka(*, tls: bool = False) -> Iterator[TemporaryKafka]:
    """Run a broker with a new temporary folder. The end of the block removes both.

    If this process is killed, the next call in any process removes the folder.

    Args:
        tls: also listen for TLS clients, see `over_tls`; this takes another second. Defaults to False.

    Raises:
        ConfigError: Java is missing, the jars cannot be fetched, or the broker does not start.
    """
    classpath = kafka_classpath()
    with temporary_folder("wheel-sched-kafka-") as folder:
        kafka = TemporaryKafka(folder, classpath, tls=tls)
        try:
            yield kafka
        finally:
            kafka.sigkill()


def kafka_classpath() -> str:
    """Return the class path of a broker. Maven fetches jars that its local repository does not have.

    Raises:
        ConfigError: Java is missing, Maven is needed and missing, or Maven cannot fetch the jars.
    """
    if shutil.which("java") is None:
        raise ConfigError("a Kafka broker needs Java 17 (apt-get install openjdk-17-jre-headless); nothing was started")
    return _fetched(f"kafka-{VERSION}", _POM.format(version=VERSION))


def connector_jars() -> list[str]:
    """Return the jars of Spark's own Kafka connector, for the setting `spark.jars`. Maven fetches missing ones.

    Raises:
        ConfigError: Maven is needed and missing, or cannot fetch the jars.
    """
    parts = (_DEPENDENCY.format(group=g, artifact=a, version=v) for g, a, v in _CONNECTOR_JARS)
    return _fetched(f"spark-kafka-{CONNECTOR}", _CONNECTOR_POM.format(dependencies="".join(parts))).split(os.pathsep)


def _fetched(name: str, project: str) -> str:
    """Return the class path of a Maven project. The cache file `name` keeps it for later calls."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wheel-sched"
    known = cache / f"{name}.classpath"
    if known.is_file():
        classpath = known.read_text().strip()
        if classpath and all(Path(jar).is_file() for jar in classpath.split(os.pathsep)):
            return classpath
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigError(f"fetching {name} needs Maven (apt-get install maven); nothing was started")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pom, found = Path(scratch) / "pom.xml", Path(scratch) / "classpath"
        pom.write_text(project)
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={found}", "-Dmdep.includeScope=runtime"]
        done = subprocess.run(
            [maven, "--batch-mode", "--quiet", "-f", str(pom), *goal],
            check=False,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
        )
        if done.returncode or not found.is_file():
            raise ConfigError(f"Maven could not fetch {name}: {(done.stdout + done.stderr)[-2000:]}")
        fresh = known.with_suffix(f".{os.getpid()}")
        shutil.copyfile(found, fresh)
        fresh.replace(known)
    return known.read_text().strip()


@contextlib.contextmanager
def mock_kafka(brokers: int = 1) -> Iterator[str]:
    """Run librdkafka's mock cluster, see `MockCluster`, and yield its bootstrap address.

    Raises:
        ConfigError: the mock cluster did not start.
    """
    with MockCluster(brokers) as cluster:
        yield cluster.bootstrap
