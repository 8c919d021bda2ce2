"""The command line: splice build, plan, mix, validate, inspect, report, train, export, plot, eval.

Other rooms are imported only when their command runs, but for what makes their options.
"""

from __future__ import annotations

import inspect as signatures
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from splice.pipelines import plan_options
from splice.train.settings import flags as train_flags

from .errors import RESUME, RESUME_EVALUATION, RESUME_TRAINING, BuildFailed, Interrupted, SpliceError
from .options import command, needing, option, parameter
from .settings import BuildSettings, fields, resolve

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="splice",
    help="Pack mutually relevant documents into long-context training examples (SPLiCe).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

BUILD_HELP = """Pack a corpus into examples of L tokens: read, link, walk, write.

Run it again after any interruption and it goes on where it stopped. Options for the Beam runner follow after `--`:
splice build SRC --output out -- --runner=FnApiRunner --direct_running_mode=multi_processing
"""

_beam_options: list[str] = []  # what stands after `--`, taken off before typer sees the command line


def _build(dry_run: bool, config: Path | None, explain: bool, **flags: Any) -> None:
    from rich.console import Console

    from splice.pipelines.summary import show_summary

    settings = resolve(flags, config)
    console = Console()
    if dry_run:
        from splice.pipelines.estimate import show_dry_run

        show_dry_run(settings, _beam_options, console)
        return
    if explain:
        from splice.pipelines.explain import show_explained

        show_explained(settings, _beam_options, console)
        return
    show_summary(_run_build(settings, _beam_options, console), settings, console)


def _run_build(settings: BuildSettings, beam_options: list[str], console: Console) -> dict[str, Any]:
    """Build in this process; gives the manifest."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ["RAYON_NUM_THREADS"] = str(settings.worker_count)  # read by the tokenizers when they are first used
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # nothing here uses it, and its threads would stand in the way of a fork
    from splice.pipelines.build import build
    from splice.pipelines.processes import TaskProcesses
    from splice.pipelines.runners import runner_options, runs_here

    options = runner_options(beam_options, settings.worker_count)
    with (
        _failing_clearly(),
        TaskProcesses(settings.worker_count if runs_here(options) else 1) as processes,
    ):
        return build(settings, options, console, processes)


@contextmanager
def _failing_clearly() -> Iterator[None]:
    """Full disks and interrupts as errors that say how to go on."""
    try:
        yield
    except OSError as error:
        raise BuildFailed(f"{error}. Mend it. {RESUME}") from error
    except KeyboardInterrupt:  # here, because typer ends on it without a word
        raise Interrupted(f"interrupted. {RESUME}") from None


def _with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Give `function` a typer option for every setting, in the settings' words; None where the flag is not given."""
    explain = typer.Option("--explain", help="print the stages and their tasks, and stop", rich_help_panel="Where")
    parameters = [*_run_options("Where"), parameter("explain", Annotated[bool, explain], False)]
    for name, setting in fields().items():
        if name == "sources":
            kind: Any = Annotated[
                list[str] | None, typer.Argument(metavar="[SRC]...", help=setting["help"], show_default=False)
            ]
        else:
            kind = option(setting)
        parameters.append(parameter(name, kind, None))
    return command(function, parameters, BUILD_HELP)


def _run_options(panel: str) -> list[signatures.Parameter]:
    dry_run = typer.Option("--dry-run", help="say what would be done, and stop", rich_help_panel=panel)
    config = typer.Option(help="YAML file with the same names; flags override it", rich_help_panel=panel)
    return [
        parameter("dry_run", Annotated[bool, dry_run], False),
        parameter("config", Annotated[Path | None, config], None),
    ]


app.command("build")(_with_settings(_build))


def _plan(**flags: Any) -> None:
    from rich.console import Console

    from splice.pipelines.planning import show_plan

    show_plan(flags, Console())


app.command("plan")(command(_plan, plan_options.parameters(), plan_options.HELP))


@app.command()
def mix(
    config: Annotated[Path, typer.Argument(help="YAML file: the datasets, their shares by tokens")],
    output: Annotated[Path, typer.Option(help="where the mixture goes")],
    tokens: Annotated[
        int | None, typer.Option(help="tokens of the mixture; default: all that the shares allow")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="order of the shards")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done, and stop")] = False,
) -> None:
    """Mix datasets by shares of their tokens: whole shards are linked, not copied.

    A dataset of the file is a directory (`dataset:`) or settings of a build (`build:`, at random unless it says
    otherwise), which is made first, below OUTPUT/built.
    """
    from rich.console import Console

    from splice.pipelines.finish import leave_report
    from splice.pipelines.link import encoder_of

    from .files import check_writable
    from .lock import locked
    from .mix import Taken, check_alike, plan_mixture, refuse_foreign, resolve_builds, resolve_mix
    from .mix import mix as make
    from .mix_summary import show_mixture, show_plan
    from .store import PackedDataset

    console = Console()
    settings = resolve_mix(config, tokens, seed)
    builds = resolve_builds(settings, config, output)
    if dry_run:
        show_plan(settings, builds, console)
        return
    refuse_foreign(output)
    check_writable(output.absolute(), "--output")
    paths = [part.dataset or builds[number].output or "" for number, part in enumerate(settings.datasets)]

    def planned() -> tuple[list[PackedDataset], list[Taken]]:
        datasets = [PackedDataset(path) for path in paths]
        return datasets, plan_mixture(settings, datasets)

    if builds:
        check_alike(settings, builds)
        for build in builds.values():
            encoder_of(build)
    ready = None if builds else planned()  # what is wrong is said before anything is written
    with _failing_clearly(), locked(output):
        for build in builds.values():
            _run_build(build, _beam_options, console)
        datasets, taken = ready or planned()
        manifest = make(settings, datasets, taken, output)
        leave_report(output, console)
        show_mixture(manifest, output, console)


@app.command()
def validate(
    dataset: Annotated[str, typer.Argument(help="the --output of a build")],
) -> None:
    """Prove the ledger, the checksums and the invariants from the files; exit 1 says what fails."""
    from rich.console import Console

    from .storage import location
    from .validate import show_validation

    if not show_validation(location(dataset), Console()):
        raise typer.Exit(1)


@app.command()
def inspect(
    dataset: Annotated[str, typer.Argument(help="the --output of a build")],
    example: Annotated[int, typer.Option(help="which example, in stored order; negative counts from the end")] = 0,
) -> None:
    """Show one example: its documents, parents, scores, token ranges and first lines of text."""
    from rich.console import Console

    from .inspect import show_example
    from .storage import location

    show_example(location(dataset), example, Console())


@app.command()
def report(
    datasets: Annotated[
        list[str], typer.Argument(help="the --output of builds or mixtures; several stand side by side")
    ],
    output: Annotated[
        str | None,
        typer.Option(help="where the page goes; default: report.html in the dataset, or here if there are several"),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="to the terminal instead")] = False,
) -> None:
    """Draw what a dataset is made of and how related its documents are: one page that opens from disk."""
    from rich.console import Console

    from .report import REPORT, show_report, write_report
    from .storage import location

    console = Console()
    places = [location(dataset) for dataset in datasets]
    if text:
        show_report(places, console)
        return
    page = location(output) if output else (places[0] if len(places) == 1 else Path()) / REPORT
    try:
        write_report(places, page)
    except OSError as error:
        raise SpliceError(f"{page}: cannot be written ({error.strerror}); name another place with --output") from None
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)


TRAIN_HELP = """Train a Llama on a dataset of `splice build` or `splice mix`, with a longer context if asked for.

On several GPUs: torchrun --nproc-per-node 8 -m splice.train --config FILE --data DATASET. A run that ended early goes on
with --resume.
"""


def _train(dry_run: bool, config: Path | None, **flags: Any) -> None:
    from rich.console import Console

    from splice.train.settings import resolve

    settings = resolve({_dotted[name]: value for name, value in flags.items()}, config)
    with needing("splice train", "train"):
        from splice.train.run import run as train

    train(settings, dry_run, Console())


def _with_train_settings(function: Callable[..., None]) -> Callable[..., None]:
    """As `_with_settings`, of the trainer's: --optimizer.lr, --document-mask, --compile/--no-compile."""
    parameters = _run_options("Run")
    for name, setting in train_flags().items():
        flag = name.replace("_", "-")
        python_name = name.replace(".", "__")
        _dotted[python_name] = name
        names = f"--{flag}/--no-{flag}" if setting["annotation"] is bool else f"--{flag}"
        kind = option(setting, names)
        parameters.append(parameter(python_name, kind, None))
    return command(function, parameters, TRAIN_HELP)


_dotted: dict[str, str] = {}  # a function's argument -> the setting it is for
app.command("train")(_with_train_settings(_train))


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="RUN/step-NNNNNN of a `splice train`")],
    output: Annotated[Path, typer.Option(help="the directory to make")],
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="of the weights")] = "float32",
) -> None:
    """Write a checkpoint as a directory of Hugging Face's Llama, or with experts Mixtral, with its tokenizer."""
    from rich.console import Console

    with needing("splice export", "train"):
        from splice.train.export import export as write

    write(checkpoint, output, dtype, Console())


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="the --output of `splice train`; several are drawn together")],
    output: Annotated[Path, typer.Option(help="where the pictures go")] = Path("figures"),
) -> None:
    """Draw the loss, perplexity by position, speed and load of experts of runs, as PNG files."""
    from rich.console import Console

    from splice.train.plot import show_plot

    show_plot(runs, output, Console())


@app.command("eval")
def evaluate() -> None:
    """Evaluate long-context models: lost in the middle, in-context learning, QA, perplexity by position."""
    raise AssertionError("`run` hands its commands to splice.eval, whose options take a moment to make")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="print the version and stop")] = False,
) -> None:
    if version:
        from . import __version__

        typer.echo(f"splice {__version__}")
        raise typer.Exit


def run(arguments: list[str]) -> int:
    """Run one command line in this process; gives the exit code. Errors a user can mend are one message on stderr."""
    global _beam_options
    if arguments[:1] == ["train"]:
        arguments = [_dashed(argument) for argument in arguments]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    _beam_options = arguments[cut + 1 :]
    try:
        if arguments[:1] == ["eval"]:
            from splice.eval.command import app as eval_app
            from splice.eval.command import gathered

            eval_app(gathered([_dashed(argument) for argument in arguments])[1:], prog_name="splice eval")
        else:
            app(arguments[:cut], standalone_mode=True)
    except SystemExit as stop:
        return int(stop.code or 0)
    except SpliceError as error:
        print(f"splice: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 1
    return 0


def _dashed(argument: str) -> str:
    """--model.kv_heads, as in the file, is --model.kv-heads."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


_BUILD = ("the build", "fewer --workers or --pack-documents need less", RESUME)
_EVALUATION = ("the evaluation", "a smaller --batch-tokens or --chunk needs less")
# What a user is told of a command that was killed: its name, what needs less memory, how to go on.
SUPERVISED = {
    "build": _BUILD,
    "mix": _BUILD,
    "train": ("the training", "a smaller --batch.micro or --recompute needs less", RESUME_TRAINING, True),
    "eval": (*_EVALUATION, RESUME_EVALUATION, True),
    "eval harness": (*_EVALUATION, "Nothing of it is kept: run the same command again.", True),
}


def main() -> None:
    """The `splice` command. What may run long runs under supervision, so that one that is killed still ends in a sentence."""
    arguments = sys.argv[1:]
    told = SUPERVISED.get(" ".join(arguments[:2])) or SUPERVISED.get(" ".join(arguments[:1]))
    if told and "--help" not in arguments:
        from splice.pipelines.supervise import supervised

        sys.exit(supervised(lambda: run(arguments), *told))
    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
