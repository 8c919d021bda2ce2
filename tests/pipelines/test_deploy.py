"""deploy/: a cluster works when the versions on it agree, and each of them is written in several files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GUIDE = (ROOT / "docs/cluster.md").read_text()


def test_one_version_of_beam():
    found = set(re.findall(r"(?:_sdk:|apache-beam==)([\d.]+)", DOCKERFILE))
    found |= {COMPOSE["services"]["jobserver"]["image"].partition(":")[2]}
    found |= set(re.findall(r"(?:apache-beam==|_job_server:)([\d.]+\d)", GUIDE))
    (version,) = found
    least = next(d for d in PROJECT["project"]["dependencies"] if d.startswith("apache-beam"))
    assert least == f"apache-beam>={version.rpartition('.')[0]},<3"


def test_one_version_of_flink():
    services = COMPOSE["services"]
    images = {service["image"] for service in services.values() if service["image"].startswith("flink:")}
    (flink,) = {image.split(":")[1].split("-")[0] for image in images}
    install = (ROOT / "tests/cluster/install.py").read_text()
    assert f'Part("flink", "{flink}"' in install
    assert f"beam_flink{flink.rpartition('.')[0]}_job_server" in services["jobserver"]["image"]
    assert f"flink:{flink}" in GUIDE


def test_the_image_has_the_python_of_beams_and_every_room():
    python = re.search(r"FROM python:([\d.]+)-slim", DOCKERFILE)[1]
    assert f"beam_python{python}_sdk" in DOCKERFILE
    assert PROJECT["project"]["requires-python"] == f">={python}"
    copied = set(re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.M))
    rooms = {"splice"} | set(PROJECT["tool"]["setuptools"]["package-dir"].values())
    assert copied == rooms
    extras = re.search(r'"\.\[([\w,]+)\]"', DOCKERFILE)[1].split(",")
    assert set(extras) <= PROJECT["project"]["optional-dependencies"].keys()


def test_what_flink_is_told_is_one_value_a_line():
    """The image's entrypoint takes each line whole, a comment too."""
    properties = COMPOSE["x-flink"]["environment"]["FLINK_PROPERTIES"].splitlines()
    told = dict(line.split(": ") for line in properties)
    assert not [value for value in told.values() if "#" in value]
    attempts, delay = (told[f"restart-strategy.fixed-delay.{name}"] for name in ("attempts", "delay"))
    assert int(attempts) * int(delay.removesuffix(" s")) > int(told["heartbeat.timeout"]) / 1000


def test_workers_write_as_the_drivers_user():
    pools = [service for service in COMPOSE["services"].values() if service["image"] == "splice-worker"]
    assert all("WORKER" in pool["user"] and "HOME=/tmp" in pool["environment"] for pool in pools)
    assert "export WORKER=$(id -u):$(id -g)" in GUIDE


def test_every_task_manager_has_a_worker_pool_on_its_own_loopback():
    services = COMPOSE["services"]
    managers = {name for name, service in services.items() if service.get("command") == "taskmanager"}
    pools = {name: service for name, service in services.items() if service["image"] == "splice-worker"}
    assert {pool["network_mode"] for pool in pools.values()} == {f"service:{name}" for name in managers}
    (port,) = {pool["entrypoint"][-1].partition("=")[2] for pool in pools.values()}
    assert f"--environment_config=localhost:{port}" in GUIDE
    for name in (*managers, *pools, "jobserver"):  # of one file, one path everywhere
        assert services[name]["volumes"] == ["/data:/data"]
