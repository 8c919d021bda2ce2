"""Beam's runners as a build takes them: by their short names, with what a build needs set, refused in a sentence.

A build's pipeline is one ParDo over descriptors of tasks, so what matters is how the engine deals these out: one by
one to whichever worker is free, and again to another when a worker is lost. Left to themselves the engines do not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import re
import shutil
import socket
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from splice.errors import BuildFailed, SpliceError
from splice.options import needing

PORTABLE = ("PortableRunner", "FlinkRunner", "SparkRunner", "PrismRunner")  # those that give the job to a job server
KNOWN = ("FnApiRunner", "DirectRunner", *PORTABLE, "DaskRunner", "DataflowRunner")
DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"  # Beam does not know it by its short name
FLINK_PARTITIONS = 200  # each costs a slot a fifth of a second
DASK_PARTITIONS = 10_000  # each costs the scheduler 6 ms
REACH_SECONDS = 10.0
WHERE_SPLICE_IS = (
    "say where the workers find splice: --environment_type=EXTERNAL --environment_config=HOST:PORT (a worker pool), "
    "--environment_type=DOCKER --environment_config=IMAGE (an image with splice), or --environment_type=LOOPBACK "
    "(this process, for a trial)"
)


def runner_options(given: Sequence[str], workers: int) -> list[str]:
    """Beam's options for a build: those given after `--` over the defaults of their runner.

    Locally the tasks are threads of one process: what is dear in them (tokenising, the engine, Parquet) runs without
    the GIL, an index is mapped once, and nothing is imported twice. Raises SpliceError for an option Beam does not
    know, which Beam itself would drop in silence, and for what cannot work; BuildFailed for an engine that cannot be
    reached, for which Beam would wait five minutes and then not say what for.
    """
    # Named, because the plain DirectRunner tries to download another runner first.
    options = _with_full_name(_joined(given) if given else ["--runner=FnApiRunner"])
    runner = runner_of(options)
    known: list[str] = []
    if runner == "FnApiRunner":
        _default(options, "--direct_num_workers", workers)
        _default(options, "--direct_running_mode", "in_memory")
        _default(options, "--default_sdk_harness_log_level", "ERROR")  # what worker processes would print
    elif runner in PORTABLE:
        known = _check_portable(options, runner)
    elif runner == "DaskRunner":
        _check_dask(options)
    elif runner == "DataflowRunner":
        _check_dataflow(options)
    if given:
        _refuse_unknown(options, known)
    return options


def pipeline_options(options: Sequence[str], tasks: int) -> list[str]:
    """The options for a pipeline of so many tasks, over the defaults by which these are dealt out to the workers.

    On Flink every task is a partition, which waits for a slot to become free. As Flink would have it, all partitions
    run at once or not at all, each with its share of the tasks fixed beforehand, and a lost worker is waited for.
    """
    options = list(options)
    if runner_of(options) in PORTABLE:
        _default(options, "--parallelism", min(tasks, FLINK_PARTITIONS))
        _default(options, "--execution_mode_for_batch", "BATCH_FORCED")
        # SDK workers live on between two partitions: those started anew for each take seconds, and may never come up.
        _default(options, "--environment_cache_millis", 10_000)
        # How long Beam waits for a job server that is silent. On Prism it ends a job that takes longer, too.
        _default(options, "--job_server_timeout", 86400 if runner_of(options) == "PrismRunner" else 60)
    elif runner_of(options) == "DaskRunner" and value(options, "--dask_npartitions") is None:
        _default(options, "--dask_partition_size", -(-tasks // DASK_PARTITIONS))  # by default 128 tasks at a time
    return options


def runs_here(options: Sequence[str]) -> bool:
    """Whether the tasks run in threads of this process."""
    return runner_of(options) == "FnApiRunner" and value(options, "--direct_running_mode") == "in_memory"


def runs_on_this_machine(options: Sequence[str]) -> bool:
    """Whether all tasks run on the driver's machine, as far as the options tell."""
    runner = runner_of(options)
    environment = value(options, "--environment_type")
    return (
        runner == "FnApiRunner"
        or environment == "LOOPBACK"
        or (environment is None and _all_here(options, runner))
        or (runner == "DaskRunner" and value(options, "--dask_client_address") is None)
    )


def runner_of(options: Sequence[str]) -> str:
    """The runner's name without its module."""
    return (value(options, "--runner") or "").rsplit(".", 1)[-1]


def value(options: Sequence[str], name: str) -> str | None:
    """What an option is given as, the last time; None where it is not given."""
    found = [option.partition("=")[2] for option in options if option.partition("=")[0] == name]
    return found[-1] if found else None


def check_reachable(options: Sequence[str]) -> list[str]:
    """Raise BuildFailed where the engine does not answer at its address. Gives the options a job server has beside Beam's own."""
    endpoint, address = value(options, "--job_endpoint"), value(options, "--dask_client_address")
    if endpoint and endpoint != "embed" and runner_of(options) in PORTABLE:
        return _ask_job_server(endpoint)
    place = re.fullmatch(r"(?:\w+://)?(.+):(\d+)", address or "")
    if place and runner_of(options) == "DaskRunner":
        try:
            socket.create_connection((place[1], int(place[2])), REACH_SECONDS).close()
        except OSError as error:
            raise BuildFailed(
                f"--dask_client_address={address}: no scheduler answers there ({error.strerror or error}); "
                "start it with `dask scheduler`, or give another address"
            ) from None
    return []


def _ask_job_server(endpoint: str) -> list[str]:
    with quiet():
        import grpc
        from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

    with grpc.insecure_channel(endpoint) as channel:
        ask = beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions
        try:
            answer = ask(beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=REACH_SECONDS)
        except grpc.RpcError as error:
            reason = error.details().rpartition(": ")[2].strip("[]")
            raise BuildFailed(
                f"--job_endpoint={endpoint}: no job server answers there ({reason}); start it, or give another address"
            ) from None
    return [option.name for option in answer.options]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Beam and the engines' clients log what a user has no use for; errors still come through as exceptions."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _joined(given: Sequence[str]) -> list[str]:
    """`--name value` as `--name=value`."""
    options: list[str] = []
    for word in given:
        if options and not word.startswith("--") and "=" not in options[-1]:
            options[-1] += f"={word}"
        else:
            options.append(word)
    return options


def _with_full_name(options: list[str]) -> list[str]:
    given = value(options, "--runner")
    if given is None:
        return [*options, "--runner=FnApiRunner"]
    if "." in given:
        return options
    names = {name.lower(): name for name in KNOWN}
    name = names.get(given.lower()) or names.get(f"{given.lower()}runner")
    if name is None:
        raise SpliceError(
            f"--runner={given}: no such runner; there are {', '.join(KNOWN)}, and any class by its full name"
        )
    others = [option for option in options if option.partition("=")[0] != "--runner"]
    return [*others, f"--runner={DASK if name == 'DaskRunner' else name}"]


def _default(options: list[str], name: str, default: object) -> None:
    if value(options, name) is None:
        options.append(f"{name}={default}")


def _check_portable(options: Sequence[str], runner: str) -> list[str]:
    """The options that the job server knows, where it runs already."""
    endpoint = value(options, "--job_endpoint")
    environment = value(options, "--environment_type")
    if runner == "PortableRunner" and not endpoint:
        raise SpliceError("--runner=PortableRunner: say where the job server is with --job_endpoint=HOST:PORT")
    image = value(options, "--environment_config") or value(options, "--sdk_container_image")
    if (
        environment in (None, "DOCKER", "EXTERNAL")
        and not image
        and not (environment is None and _all_here(options, runner))
    ):
        raise SpliceError(f"--runner={runner}: {WHERE_SPLICE_IS}")
    if endpoint:
        return check_reachable(options)
    java = value(options, "--job_server_java_launcher") or "java"
    if runner in ("FlinkRunner", "SparkRunner") and shutil.which(java) is None:
        raise SpliceError(
            f"--runner={runner}: starts a job server with {java}, which is not here; install Java, "
            "or name a job server that runs already with --job_endpoint=HOST:PORT"
        )
    return []


def _all_here(options: Sequence[str], runner: str) -> bool:
    """Whether the runner starts its engine on this host, with this process for its worker."""
    if runner == "FlinkRunner":
        return value(options, "--flink_master") in (None, "[auto]", "[local]")
    if runner == "SparkRunner":
        return re.fullmatch(r"local(\[.+\])?", value(options, "--spark_master_url") or "local") is not None
    return runner == "PrismRunner"


def _check_dask(options: Sequence[str]) -> None:
    with needing("--runner=DaskRunner", "dask"):
        import distributed  # noqa: F401
    check_reachable(options)


def _check_dataflow(options: Sequence[str]) -> None:
    if find_spec("apitools") is None:
        raise SpliceError("--runner=DataflowRunner needs Google's client: pip install 'apache-beam[gcp]'")
    if not value(options, "--sdk_container_image"):
        raise SpliceError("--runner=DataflowRunner: name an image with splice with --sdk_container_image=IMAGE")


def _refuse_unknown(options: list[str], more: list[str]) -> None:
    """Raise SpliceError for an option that neither Beam knows nor is among those a job server named, `more`."""
    import difflib

    with quiet():
        from apache_beam.options.pipeline_options import PipelineOptions

        if runner_of(options) == "DaskRunner":
            from apache_beam.runners.dask import dask_runner  # noqa: F401 - registers its options

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for kind in PipelineOptions.__subclasses__():
        with contextlib.suppress(argparse.ArgumentError):
            kind._add_argparse_args(parser)
    for name in more:
        with contextlib.suppress(argparse.ArgumentError):
            parser.add_argument(f"--{name}", nargs="?")
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            _, unknown = parser.parse_known_args(options)
    except SystemExit:
        raise SpliceError(f"after `--`: {said.getvalue().strip().splitlines()[-1]}") from None
    if unknown:
        name = unknown[0].split("=")[0]
        known = [option for action in parser._actions for option in action.option_strings]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SpliceError(f"after `--`: Beam has no option {name}{hint} (splice's own options go before `--`)")
