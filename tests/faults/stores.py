"""Servers of stores for tests: a Google Cloud Storage server, and an HDFS of one name node and one data node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engines import HERE, engine_in, free_port, java, listening
from install import PARTS


@contextmanager
def gcs(directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A server of Google's storage protocol over a directory: the URL of a bucket, and the variables by which clients find it."""
    port = free_port()
    (directory / "buckets" / "corpus").mkdir(parents=True)
    address = f"{HERE.address}:{port}"
    with engine_in(directory) as engine:
        command = [
            PARTS["fake-gcs-server"].directory / "fake-gcs-server", "-scheme", "http", "-host", HERE.address, "-port", port,
            "-public-host", address, "-backend", "filesystem", "-filesystem-root", directory / "buckets",
        ]  # fmt: skip
        server = engine.start("gcs", command)
        server.wait_for(lambda: listening(HERE.address, port))
        yield "gs://corpus", {"STORAGE_EMULATOR_HOST": f"http://{address}"}


@contextmanager
def hdfs(directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A name node and a data node: the URL of a directory, and the variables by which clients find them."""
    rpc, *ports = (free_port() for _ in range(5))
    configuration = directory / "conf"
    for page in ("hdfs", "datanode"):  # the pages of the web consoles, which the archives lack
        (configuration / "webapps" / page).mkdir(parents=True)
    _write(configuration / "core-site.xml", {"fs.defaultFS": f"hdfs://{HERE.address}:{rpc}"})
    names = (
        "dfs.namenode.http-address",
        "dfs.datanode.address",
        "dfs.datanode.http.address",
        "dfs.datanode.ipc.address",
    )
    settings = {name: f"{HERE.address}:{port}" for name, port in zip(names, ports, strict=True)}
    settings |= {"dfs.namenode.name.dir": f"{directory}/names", "dfs.datanode.data.dir": f"{directory}/blocks"}
    _write(configuration / "hdfs-site.xml", settings | {"dfs.replication": "1", "dfs.permissions.enabled": "false"})
    (configuration / "log4j.properties").write_text(
        "log4j.rootLogger=INFO,out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.out.layout.ConversionPattern=%p %c{1} %m%n\n"
    )
    command = java("300m", PARTS["hdfs"].directory)
    command[-1] = f"{configuration}:{command[-1]}"
    node = "org.apache.hadoop.hdfs.server"
    with engine_in(directory) as engine:
        formatting = engine.start("format", [*command, f"{node}.namenode.NameNode", "-format", "-nonInteractive"])
        formatting.process.wait(60)
        name_node = engine.start("name node", [*command, f"{node}.namenode.NameNode"])
        name_node.wait_for(lambda: listening(HERE.address, rpc))
        data_node = engine.start("data node", [*command, f"{node}.datanode.DataNode"])
        data_node.wait_for(lambda: "successfully registered with NN" in data_node.log.read_text())
        yield "hdfs:///corpus", {"HADOOP_CONF_DIR": str(configuration)}


def _write(path: Path, settings: dict[str, str]) -> None:
    properties = "".join(f"<property><name>{n}</name><value>{v}</value></property>\n" for n, v in settings.items())
    path.write_text(f"<configuration>\n{properties}</configuration>\n")
