"""Which engine a build is given to, with which options, and what is refused before any work."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from splice.errors import BuildFailed, SpliceError
from splice.pipelines import beam, runners
from splice.pipelines.runners import pipeline_options, runner_of, runner_options, value
from splice.task import Task


@pytest.fixture
def port():
    """One that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@pytest.fixture
def job_server():
    """The address of one that knows the option --restart_hosts, and nothing else."""

    class Server(beam_job_api_pb2_grpc.JobServiceServicer):
        def DescribePipelineOptions(self, request, context):
            known = beam_job_api_pb2.PipelineOptionDescriptor(name="restart_hosts")
            return beam_job_api_pb2.DescribePipelineOptionsResponse(options=[known])

    server = grpc.server(ThreadPoolExecutor(1))
    beam_job_api_pb2_grpc.add_JobServiceServicer_to_server(Server(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield address
    server.stop(None)


LOOPBACK = "--environment_type=LOOPBACK"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--runner=PortableRunner", LOOPBACK], "say where the job server is with --job_endpoint=HOST:PORT"),
        (["--runner=PortableRunner", "--job_endpoint=h:1"], "say where the workers find splice: --environment_type=EXTERNAL"),
        (["--runner=PortableRunner", "--job_endpoint=h:1", "--environment_type=EXTERNAL"], "say where the workers find"),
        (["--runner=SparkRunner", "--spark_master_url=spark://h:7077"], "say where the workers find splice"),
        (["--runner=FlinkRunner", "--flink_master=http://h:8081"], "say where the workers find splice"),
        (["--runner=FlinkRunner", "--job_server_java_launcher=no-such-java"], "with no-such-java, which is not here"),
        (["--runner=Flnk"], "--runner=Flnk: no such runner; there are FnApiRunner"),
        (["--runner", "FnApiRunner", "--direct_num_worker", "2"], "no option --direct_num_worker; did you mean --direct_num_workers"),
        (["--runner=FnApiRunner", "--direct_num_workers=two"], "invalid int value: 'two'"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_sentence(given, said):
    with pytest.raises(SpliceError) as refused:
        runner_options(given, 2)
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_runner_whose_library_is_missing_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SpliceError, match=r"--runner=DaskRunner needs distributed.*pip install 'splice-data\[dask\]'"):
        runner_options(["--runner=DaskRunner"], 2)
    monkeypatch.setattr(runners, "find_spec", lambda name: None)
    with pytest.raises(SpliceError, match=r"DataflowRunner needs Google's client: pip install 'apache-beam\[gcp\]'"):
        runner_options(["--runner=DataflowRunner"], 2)


def test_an_engine_that_does_not_answer_is_told_and_not_waited_for(port):
    pytest.importorskip("distributed")
    for given, said in (
        (["--runner=PortableRunner", LOOPBACK, f"--job_endpoint=127.0.0.1:{port}"], "no job server answers there"),
        (["--runner=DaskRunner", f"--dask_client_address=tcp://127.0.0.1:{port}"], "no scheduler answers there"),
    ):
        with pytest.raises(BuildFailed, match=f"=[a-z:/]*127.0.0.1:{port}: {said} .Connection refused"):
            runner_options(given, 2)


def test_a_job_servers_own_options_are_known_and_others_are_not(job_server):
    given = ["--runner=PortableRunner", LOOPBACK, f"--job_endpoint={job_server}"]
    assert "--restart_hosts=3" in runner_options([*given, "--restart_hosts", "3"], 2)
    with pytest.raises(SpliceError, match="no option --restart_host; did you mean --restart_hosts"):
        runner_options([*given, "--restart_host=3"], 2)


@pytest.mark.parametrize("name", ["PrismRunner", "prismrunner", "Prism"])
def test_runners_go_by_short_names(name):
    assert runner_of(runner_options([f"--runner={name}"], 2)) == "PrismRunner"


def test_dask_goes_by_the_name_that_beam_knows():
    pytest.importorskip("distributed")
    from apache_beam.runners.runner import create_runner

    runner = value(runner_options(["--runner=DaskRunner"], 2), "--runner")
    assert type(create_runner(runner)).__name__ == "DaskRunner"


def test_options_without_a_runner_are_the_local_ones():
    options = runner_options(["--direct_running_mode", "multi_processing"], 3)
    assert runner_of(options) == "FnApiRunner"
    assert value(options, "--direct_num_workers") == "3"
    assert value(options, "--direct_running_mode") == "multi_processing"
    assert not runners.runs_here(options)
    assert runners.runs_here(runner_options([], 3))


def test_tasks_are_dealt_out_one_by_one_unless_the_user_says_otherwise():
    flink = pipeline_options(["--runner=PortableRunner"], 40)
    assert value(flink, "--parallelism") == "40"
    assert value(flink, "--execution_mode_for_batch") == "BATCH_FORCED"
    assert value(pipeline_options(["--runner=FlinkRunner"], 10**6), "--parallelism") == "200"
    assert value(pipeline_options(["--runner=FlinkRunner", "--parallelism=7"], 40), "--parallelism") == "7"
    dask = [f"--runner={runners.DASK}"]
    assert value(pipeline_options(dask, 40), "--dask_partition_size") == "1"
    assert value(pipeline_options(dask, 25_000), "--dask_partition_size") == "3"
    # Beam takes only one of the two.
    assert value(pipeline_options([*dask, "--dask_npartitions=3"], 40), "--dask_partition_size") is None
    assert pipeline_options(["--runner=FnApiRunner"], 40) == ["--runner=FnApiRunner"]


def test_the_last_of_two_values_counts_as_it_does_for_beam():
    assert value(["--runner=a", "--runner=b=c"], "--runner") == "b=c"
    assert value(["--runners=a"], "--runner") is None


def test_workers_elsewhere_have_a_thread_a_task_and_no_core_of_this_machine():
    from splice.pipelines.build import with_threads
    from splice.settings import BuildSettings

    flink = ["--runner=PortableRunner", "--environment_type=EXTERNAL"]
    assert with_threads(BuildSettings(), flink).worker_count == 1
    assert with_threads(BuildSettings(workers=6), flink).worker_count == 6
    assert with_threads(BuildSettings(), ["--runner=PortableRunner", "--environment_type=LOOPBACK"]).workers == 0
    assert with_threads(BuildSettings(), runner_options([], 3)).workers == 0
    for engine in (
        "--runner=FlinkRunner",
        "--runner=SparkRunner",
        "--runner=PrismRunner",
    ):  # that the runner starts here
        assert with_threads(BuildSettings(), [engine]).workers == 0
    assert with_threads(BuildSettings(), ["--runner=FlinkRunner", "--flink_master=far:8081"]).worker_count == 1


@pytest.mark.parametrize(("runner", "shared"), [("PrismRunner", True), ("FnApiRunner", False)])
def test_stages_share_the_workers_of_an_engine_however_few_the_driver_has(monkeypatch, tmp_path, runner, shared):
    from rich.console import Console

    from splice.pipelines import run
    from splice.settings import BuildSettings

    jobs: list[list[str]] = []
    monkeypatch.setattr(run, "run_tasks", lambda tasks, *_: jobs.append([task.stage for task in tasks]))
    options = [f"--runner={runner}", "--direct_running_mode=in_memory"]
    driver = run.Run(BuildSettings(workers=1), options, Console(quiet=True), None, [])
    monkeypatch.setattr(driver, "cpu_seconds", lambda: 0.0)
    stages = [run.Stage(name, [Task(name, "0", str(tmp_path))], [1]) for name in ("tokenizer", "index")]
    driver.together(stages)
    assert jobs == ([["tokenizer", "index"]] if shared else [["tokenizer"], ["index"]])


def test_a_stage_of_very_many_tasks_is_several_jobs(monkeypatch, tmp_path):
    jobs: list[list[str]] = []
    monkeypatch.setattr(beam, "JOB_TASKS", 4)
    monkeypatch.setattr(beam, "_run_pipeline", lambda tasks, *_: jobs.append([task.name for task in tasks]))
    tasks = [Task("read", str(i), str(tmp_path)) for i in range(6)] + [
        Task("index", "last", str(tmp_path), after="read")
    ]
    with pytest.raises(BuildFailed, match=r"without an error, 7 of 7 tasks not done \(first: read/0\)"):
        beam.run_tasks(tasks, ["--runner=PrismRunner"], 1)
    assert jobs == [["0", "1", "2", "3"], ["4", "5"], ["last"]]


FLINK_SAYS = """Pipeline job_1 failed in state FAILED: java.lang.RuntimeException: Error received from SDK harness for instruction 4: Traceback (most recent call last):
  File "sdk_worker.py", line 314, in _execute
    response = task()
ModuleNotFoundError: No module named 'splice'

\tat org.apache.beam.runners.fnexecution.control.FnApiControlClient.handle(FnApiControlClient.java:180)
Caused by: java.lang.RuntimeException: Error received from SDK harness
\t... 8 more
"""
NO_SLOT_SAYS = """Pipeline job_2 failed in state FAILED: org.apache.flink.client.program.ProgramInvocationException: Job failed
\tat org.apache.flink.client.Client.run(Client.java:1)
Caused by: org.apache.flink.runtime.JobException: Recovery is suppressed
\tat org.apache.flink.Scheduler.fail(Scheduler.java:2)
Caused by: java.util.concurrent.TimeoutException: Could not acquire the minimum required resources.
\t... 3 more
"""


def test_what_a_runner_says_is_cut_down_to_the_line_that_says_why():
    assert beam._cause(RuntimeError(FLINK_SAYS)) == "ModuleNotFoundError: No module named 'splice'"
    assert beam._cause(RuntimeError(NO_SLOT_SAYS)).endswith(
        "TimeoutException: Could not acquire the minimum required resources."
    )
    assert beam._cause(RuntimeError("Pipeline job_3 failed in state CANCELLED: unknown error")).startswith(
        "Pipeline job_3"
    )
    assert beam._cause(TimeoutError("Only 0/1 workers arrived")) == "TimeoutError: Only 0/1 workers arrived"
    outer = RuntimeError("Error during deserialization")
    outer.__cause__ = KeyError("the cause")
    assert beam._cause(outer) == "KeyError: 'the cause'"
