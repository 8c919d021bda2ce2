"""Engines for the cluster tests, each part a process of its own: with its log, on a free port, ended by its id.

    with flink(tmp_path) as engine:
        cli("build", ..., "--", *engine.options)
        engine.parts["task manager 1"].kill()
        engine.parts["task manager 1"].start()

Each has a directory of its own below the engine's, where its log is. A part that does not come up fails the test with
the end of that log. No part outlives the test's process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from install import PARTS

START_SECONDS = 90.0  # two busy cores start a JVM in ten
STOP_SECONDS = 5.0
PR_SET_PDEATHSIG = 1

# Java 17 closes to Flink's and Spark's serializers what they look into.
OPENED = (
    "java.util", "java.lang", "java.lang.reflect", "java.lang.invoke", "java.nio", "java.time", "java.text", "java.io",
    "java.net", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip
FLINK = {
    "jobmanager.bind-host": "0.0.0.0",
    "rest.bind-address": "0.0.0.0",
    "classloader.resolve-order": "parent-first",  # Beam is on the cluster's class path
    "heartbeat.interval": "2000",  # so that a lost TaskManager is noticed soon
    "heartbeat.timeout": "10000",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "4",  # together longer than a lost TaskManager goes unnoticed
    "restart-strategy.fixed-delay.delay": "5 s",
}
# What Flink's own start scripts would reckon. No bulk data passes through Flink, so it needs little.
TASK_MANAGER = {
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory.task.heap.size": "256m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.managed.size": "64m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "192m",
    "taskmanager.memory.jvm-overhead.max": "192m",
}
SENT = ("beam-runners-flink-1.19", "flink-java", "flink-optimizer", "flink-clients", "flink-streaming-java")
LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n
"""


# Run on a host $0 of address $3: $1 is empty there but for $2, which stays as it is.
ALONE = """\
set -e
hostname "$0"
mount -t tmpfs none /mnt
mkdir /mnt/own
mount --bind "$2" /mnt/own
mount -t tmpfs none "$1"
mkdir -p "$2"
mount --bind /mnt/own "$2"
umount /mnt/own /mnt
printf '127.0.0.1 localhost\n%s %s\n' "$3" "$0" > "$2/hosts"
mount --bind "$2/hosts" /etc/hosts
shift 3
exec "$@"
"""


@dataclass(frozen=True)
class Host:
    """Where a part runs: here, or in namespaces that give it an address, a name and files of its own."""

    address: str = "127.0.0.1"
    name: str = ""
    gateway: str = "127.0.0.1"  # the address by which it reaches the test's own host
    hidden: Path = Path()  # of the test's own files what it does not see

    def command(self, command: Sequence[object], own: Path) -> list[str]:
        """The same, run there with nothing but `own` of what is hidden."""
        words = list(map(str, command))
        if not self.name:
            return words
        apart = ["ip", "netns", "exec", self.name, "unshare", "--mount", "--uts", "sh", "-c", ALONE, self.name]
        return [*apart, str(self.hidden), str(own), self.address, *words]


HERE = Host()


@dataclass
class Part:
    """A process with its children, which are ended with it."""

    name: str
    command: list[str]
    directory: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def start(self) -> Part:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.directory), **self.environment}, preexec_fn=_die_with_the_test,
            )  # fmt: skip
        return self

    def kill(self) -> None:
        """End the process and its children with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """End it as its user would, and after a while as above. One that has ended is let be: its number may be another's."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
            with suppress(ProcessLookupError):  # children that stayed
                self.kill()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until it holds. Raises AssertionError with the end of the log when that takes too long or the process ends."""
        end = time.monotonic() + START_SECONDS
        while not condition():
            ended = self.process.poll() is not None
            if ended or time.monotonic() > end:
                log = self.log.read_text(errors="replace")[-3000:]
                raise AssertionError(f"{self.name} {'ended' if ended else 'did not come up'}; {self.log} ends:\n{log}")
            time.sleep(0.1)


def _die_with_the_test() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Engine:
    """options: what a build takes after `--`; workers: the names of the hosts that run tasks; parts: in the order of their start."""

    directory: Path
    workers: list[str] = field(default_factory=lambda: [socket.gethostname()])
    options: list[str] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)

    def directory_of(self, name: str) -> Path:
        """The only one of the test's directories that a part of this name sees on a host of its own."""
        own = self.directory / name.replace(" ", "-")
        own.mkdir(exist_ok=True)
        return own

    def start(self, name: str, command: Sequence[object], host: Host = HERE, **environment: str) -> Part:
        own = self.directory_of(name)
        self.parts[name] = Part(name, host.command(command, own), own, environment)
        return self.parts[name].start()

    def start_pool(self, name: str, port: int, host: Host = HERE) -> None:
        """SDK workers, processes of this Python, for whoever asks on `port`."""
        command = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
        # A pool starts `python`, whichever comes first on the path.
        part = self.start(name, command, host, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        part.wait_for(lambda: listening(host.address, port))

    def start_job_server(self, command: Sequence[object], pool: int, **environment: str) -> None:
        """Java's job servers take the same options. Sets `options`."""
        job, artifacts, expansion = (free_port() for _ in range(3))
        more = [f"--job-host={HERE.address}", f"--job-port={job}", f"--artifact-port={artifacts}",
                f"--expansion-port={expansion}", f"--artifacts-dir={self.directory_of('job server')}/artifacts"]  # fmt: skip
        part = self.start("job server", [*command, *more], **environment)
        part.wait_for(lambda: listening(HERE.address, job))
        self.options = portable(job, pool)


@contextmanager
def engine_in(directory: Path) -> Iterator[Engine]:
    """An engine without parts; those it is given are stopped at the end, the last first."""
    directory.mkdir(parents=True, exist_ok=True)
    engine = Engine(directory)
    try:
        yield engine
    finally:
        for part in reversed(engine.parts.values()):
            part.stop()


@contextmanager
def flink(directory: Path, task_managers: int = 2, hosts: Sequence[Host] = ()) -> Iterator[Engine]:
    """A standalone cluster: a JobManager, TaskManagers of one slot each, pools of SDK workers and a job server.

    A job has one address for its pool: all TaskManagers here share one. hosts: one for each TaskManager, a pool on each,
    as in deploy/compose.yaml.
    """
    rpc, rest, pool = (free_port() for _ in range(3))
    at = hosts or [HERE] * task_managers
    master = at[0].gateway
    beam = PARTS["flink-job-server"].directory
    common = {
        **FLINK,
        "jobmanager.rpc.address": master,
        "jobmanager.rpc.port": rpc,
        "rest.address": master,
        "rest.port": rest,
    }
    with engine_in(directory) as engine:
        if hosts:
            engine.workers = [host.name for host in hosts]

        def start(name: str, main: str, settings: dict[str, object], host: Host) -> Part:
            own = engine.directory_of(name)
            lines = [f'{key}: "{value}"\n' for key, value in {**settings, "io.tmp.dirs": own}.items()]
            (own / "config.yaml").write_text("".join(lines))
            (own / "log4j.properties").write_text(LOG4J)
            # Beam too, as one would put it into Flink's lib.
            command = java("512m", PARTS["flink"].directory / "pyflink/lib", beam)
            logging = f"-Dlog4j.configurationFile={own}/log4j.properties"
            return engine.start(name, [*command, logging, f"org.apache.flink.runtime.{main}", "--configDir", own], host)

        manager = start("job manager", "entrypoint.StandaloneSessionClusterEntrypoint", common, HERE)
        for number, host in enumerate(at):
            mine = {**common, **TASK_MANAGER, "taskmanager.host": host.address}
            start(f"task manager {number}", "taskexecutor.TaskManagerRunner", mine, host)
        for number, host in enumerate(hosts or [HERE]):
            engine.start_pool(f"worker pool {number}", pool, host)
        driver = "org.apache.beam.runners.flink.FlinkJobServerDriver"
        # A job server sends what lies on its class path along with every job, 150 MB at some 12 MB a second. The cluster has
        # all of it, so here the boot loader gets it, but for what asks for its own class loader.
        own = [path for name in SENT for path in beam.glob(f"{name}-[0-9]*.jar")]
        others = ":".join(str(path) for path in sorted(beam.glob("*.jar")) if path not in own)
        server = [*java("1g", *own), f"-Xbootclasspath/a:{others}", driver, f"--flink-master={master}:{rest}"]
        manager.wait_for(lambda: registered(master, rest) == len(at))
        engine.start_job_server(server, pool)
        yield engine


def registered(address: str, port: int) -> int:
    """The number of TaskManagers that a JobManager knows."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/taskmanagers", timeout=2) as answer:
            return len(json.load(answer)["taskmanagers"])
    except OSError:
        return 0


@contextmanager
def spark(directory: Path) -> Iterator[Engine]:
    """A job server with Spark inside, two threads that try a task four times, and a pool of SDK workers."""
    pool = free_port()
    with engine_in(directory) as engine:
        engine.start_pool("worker pool", pool)
        driver = "org.apache.beam.runners.spark.SparkJobServerDriver"
        server = [*java("1g", PARTS["spark-job-server"].directory), driver, "--spark-master-url=local[2,4]"]
        engine.start_job_server(server, pool, SPARK_LOCAL_IP=HERE.address, SPARK_LOCAL_DIRS=str(directory))
        yield engine


@contextmanager
def prism(directory: Path) -> Iterator[Engine]:
    """Beam's runner in Go as a server, and a pool of SDK workers."""
    job, pool = free_port(), free_port()
    with engine_in(directory) as engine:
        engine.start_pool("worker pool", pool)
        server = engine.start(
            "job server", [PARTS["prism"].directory / "prism", f"-job_port={job}", "-serve_http=false"]
        )
        server.wait_for(lambda: listening(HERE.address, job))
        engine.options = portable(job, pool, "PrismRunner")
        yield engine


@contextmanager
def dask(directory: Path, workers: int = 2, hosts: Sequence[Host] = ()) -> Iterator[Engine]:
    """A scheduler and workers of one thread each. hosts: one for the scheduler, then one for each worker."""
    port = free_port()
    first, *others = hosts or [HERE] * (workers + 1)
    address = f"tcp://{first.address}:{port}"
    with engine_in(directory) as engine:
        if hosts:
            engine.workers = [host.name for host in others]
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", first.address, "--port", port]
        scheduler = engine.start("scheduler", [*command, "--no-dashboard"], first)
        scheduler.wait_for(lambda: listening(first.address, port))
        for number, host in enumerate(others):
            name = f"worker {number}"
            command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--host", host.address]
            more = ["--nthreads", 1, "--no-dashboard", "--local-directory", engine.directory_of(name)]
            worker = engine.start(name, [*command, *more], host)
            worker.wait_for(lambda worker=worker: "Registered to:" in worker.log.read_text())
        engine.options = ["--runner=DaskRunner", f"--dask_client_address={address}"]
        yield engine


@contextmanager
def s3(directory: Path, address: str = HERE.address) -> Iterator[dict[str, str]]:
    """An S3 server over a directory; what is given are the environment variables by which a client finds it."""
    port = free_port()
    store = directory / "buckets"
    store.mkdir(parents=True)
    keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "only-for-tests"}
    with engine_in(directory) as engine:
        command = [PARTS["versitygw"].directory / "versitygw", "--port", f"{address}:{port}", "posix", store]
        gateway = {"ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"]}
        server = engine.start("s3", command, **gateway)
        server.wait_for(lambda: listening(address, port))
        yield {**keys, "AWS_ENDPOINT_URL": f"http://{address}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def separate_hosts(count: int, hidden: Path) -> Iterator[list[Host]]:
    """Hosts on one bridge, that reach each other and the test's own by addresses only, and share no file below `hidden`."""
    taken = subprocess.run(["ip", "-4", "addr"], check=True, capture_output=True, text=True).stdout
    tag = next(number for number in range(1, 255) if f"10.213.{number}." not in taken)
    net = f"10.213.{tag}"
    with ExitStack() as stack:

        def ip(*arguments: str, undo: tuple[str, ...] = ()) -> None:
            subprocess.run(["ip", *arguments], check=True, capture_output=True)
            if undo:
                stack.callback(subprocess.run, ["ip", *undo], check=False, capture_output=True)

        bridge = f"spl{tag}"
        ip("link", "add", bridge, "type", "bridge", undo=("link", "del", bridge))
        ip("addr", "add", f"{net}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        hosts = []
        for number in range(count):
            name, near, far = f"splice-{tag}-{number}", f"spl{tag}n{number}", f"spl{tag}f{number}"
            ip("netns", "add", name, undo=("netns", "del", name))
            ip("link", "add", near, "type", "veth", "peer", "name", far, undo=("link", "del", near))
            ip("link", "set", far, "netns", name)
            ip("link", "set", near, "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{net}.{number + 2}/24", "dev", far)
            ip("-n", name, "link", "set", far, "up")
            ip("-n", name, "link", "set", "lo", "up")
            hosts.append(Host(f"{net}.{number + 2}", name, f"{net}.1", hidden))
        yield hosts


def java(heap: str, *archives: Path) -> list[object]:
    """archives: jar files or directories of them, the first going before the others."""
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    return ["java", *opens, f"-Xmx{heap}", "-cp", ":".join(f"{a}/*" if a.is_dir() else str(a) for a in archives)]


def portable(job: int, pool: int, runner: str = "PortableRunner") -> list[str]:
    """How a build reaches a job server, and a runner the SDK workers."""
    return [
        f"--runner={runner}", f"--job_endpoint={HERE.address}:{job}",
        "--environment_type=EXTERNAL", f"--environment_config=localhost:{pool}",
    ]  # fmt: skip


def free_port() -> int:
    """A port nobody listens on here, at any address; hosts that have just been made have it free too."""
    with socket.socket() as bound:
        bound.bind(("", 0))
        return bound.getsockname()[1]


def listening(address: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((address, port)) == 0
