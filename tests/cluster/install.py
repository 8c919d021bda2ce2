"""Fetch what the engines of the cluster tests need into .engines/ of the checkout: `python tests/cluster/install.py`.

Idempotent: a part that is there in the version named here is left alone. What this machine lacks for a part is said,
and its tests skip with the same words. 1 GB, of which most are Java archives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ENGINES = HERE.parent.parent / ".engines"


@dataclass(frozen=True)
class Part:
    """Something to fetch: its directory below .engines/, its version, and the programs it takes to fetch and run it."""

    name: str
    version: str
    needs: tuple[str, ...]

    @property
    def directory(self) -> Path:
        return ENGINES / self.name

    @property
    def stamp(self) -> Path:
        """Holds the version of what is there whole."""
        return self.directory / ".version"

    @property
    def installed(self) -> bool:
        return self.stamp.is_file() and self.stamp.read_text() == self.version


PARTS = {
    part.name: part
    for part in (
        Part("flink", "1.19.3", ("java",)),
        Part("flink-job-server", "1.19 2.62.0", ("java", "mvn")),
        Part("spark-job-server", "3.5.0 2.62.0", ("java", "mvn")),
        Part("prism", "v2.77.0", ("go",)),
        Part("versitygw", "v1.8.0", ("go",)),
        Part("fake-gcs-server", "v1.56.1", ("go",)),
        Part("hdfs", "3.4.1", ("java", "mvn")),
    )
}
GO_PACKAGES = {
    "prism": "github.com/apache/beam/sdks/v2/go/cmd/prism",
    "versitygw": "github.com/versity/versitygw/cmd/versitygw",
    "fake-gcs-server": "github.com/fsouza/fake-gcs-server",
}
PACKAGES = {"java": "openjdk-17-jre-headless", "mvn": "maven", "go": "Go from https://go.dev/dl", "ip": "iproute2"}


def absent(*names: str) -> str:
    """Why these parts cannot be used here, or "". A Java of another version than 17 is not looked for: Flink says so."""
    lacking = sorted({need for name in names for need in PARTS[name].needs if shutil.which(need) is None})
    if lacking:
        return f"needs {', '.join(lacking)} ({', '.join(PACKAGES[need] for need in lacking)})"
    missing = [name for name in names if not PARTS[name].installed]
    return f"{', '.join(missing)} not installed: make test-cluster fetches it" if missing else ""


def main() -> int:
    """Fetch every part that can be; 1 where one could not be fetched although its programs are there."""
    failed = []
    for part in PARTS.values():
        lacking = [need for need in part.needs if shutil.which(need) is None]
        if lacking:
            print(f"{part.name}: skipped, and its tests with it, for want of {', '.join(PACKAGES[n] for n in lacking)}")
        elif not part.installed:
            started = time.monotonic()
            shutil.rmtree(part.directory, ignore_errors=True)
            part.directory.mkdir(parents=True)
            log = ENGINES / f"{part.name}.log"
            with log.open("w") as said:
                done = all(
                    subprocess.run(command, stdout=said, stderr=said, env=environment(part)).returncode == 0
                    for command in commands(part)
                )
            if done:
                part.stamp.write_text(part.version)
                print(f"{part.name} {part.version}: {time.monotonic() - started:.0f} s")
            else:
                failed.append(part.name)
                print(f"{part.name} {part.version}: failed\n{log.read_text()[-2000:]}", file=sys.stderr)
    return 1 if failed else 0


def commands(part: Part) -> Iterator[list[str]]:
    """What fetches a part into its directory."""
    if part.name == "flink":  # the archives of a Flink distribution, without its scripts; its Python side is not wanted
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        yield [*pip, "--target", str(part.directory), f"apache-flink-libraries=={part.version}"]
    elif part.name in GO_PACKAGES:
        yield ["go", "install", f"{GO_PACKAGES[part.name]}@{part.version}"]
    else:
        maven = ["mvn", "--batch-mode", "--quiet", "--file", str(HERE / f"{part.name}.xml")]
        yield [*maven, "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={part.directory}"]


def environment(part: Part) -> dict[str, str]:
    return {**os.environ, "GOBIN": str(part.directory)}


if __name__ == "__main__":
    sys.exit(main())
