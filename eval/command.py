"""`splice eval`: a command for each task, made from its settings; `run` for a list of tasks in a file; `compare` and `plot`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from splice.errors import SpliceError
from splice.options import command, option, parameter

from .settings import flags, lists, make
from .task import Task
from .tasks import TASKS

HELP = """Evaluate long-context models: lost in the middle, in-context learning, QA, perplexity by position.

A model is a checkpoint of splice train, a Hugging Face directory or a name on the hub. What a run is interrupted at it goes on from.
"""

app = typer.Typer(name="eval", help=HELP, no_args_is_help=True, rich_markup_mode="rich")


def _task_command(task: Task) -> Callable[..., None]:
    described = flags(task.settings)
    name = typer.Option(
        help="checkpoint, Hugging Face directory or hub name; several: each below --output", rich_help_panel="Run"
    )
    output = typer.Option(help="where results go, each in a directory of its run's name", rich_help_panel="Run")
    parameters = [
        parameter("model", Annotated[list[str], name], ...),
        parameter("output", Annotated[Path, output], ...),
        *(parameter(flag, _option(flag, one), None) for flag, one in described.items()),
    ]

    def called(model: list[str], output: Path, **values: Any) -> None:
        _evaluate([(task, make(task.settings, values))], model, output)

    return command(called, parameters, sys.modules[type(task).__module__].__doc__ or task.help)


def _option(name: str, described: dict[str, Any]) -> Any:
    flag = f"--{name.replace('_', '-')}"
    return option(described, f"{flag}/--no-{flag[2:]}" if described["annotation"] is bool else flag)


for _task in TASKS.values():
    app.command(_task.name, short_help=f"{_task.help[0].upper()}{_task.help[1:]}.")(_task_command(_task))


@app.command()
def run(
    config: Annotated[
        Path, typer.Argument(help="YAML file: `runs`, a list of tasks with their settings; `defaults` of all")
    ],
    model: Annotated[
        list[str], typer.Option(help="checkpoint, Hugging Face directory or hub name; give it again for more models")
    ],
    output: Annotated[Path, typer.Option(help="where results go: OUTPUT/MODEL/RUN")],
    only: Annotated[str | None, typer.Option(help="tasks to run, of those in the file: kv,trec")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="as of a task, in the place of the file's")] = None,
) -> None:
    """Run everything that a file asks for on each model, one after another; what is finished is not run again."""
    from .paper import read_runs

    _evaluate(read_runs(config, only, data_dir), model, output, apart=True)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="the --output of an evaluation")],
    b: Annotated[Path, typer.Argument(help="that of another model")],
    output: Annotated[Path | None, typer.Option(help="a directory for compare.json as well")] = None,
) -> None:
    """What one model is better by than another, with confidence intervals, task by task."""
    from rich.console import Console

    with needing("eval"):
        from .compare import show_compare

        show_compare(a, b, Console(), output)


@app.command()
def plot(
    results: Annotated[list[Path], typer.Argument(help="the --output of evaluations; several are drawn together")],
    output: Annotated[Path, typer.Option(help="where the pictures go")] = Path("figures"),
) -> None:
    """Draw accuracy by position and by length, perplexity by position, and differences over demonstration sets, as PNG files."""
    from rich.console import Console

    from .plot import show_plot

    show_plot(results, output, Console())


def _evaluate(runs: list[tuple[Task, Any]], names: list[str], output: Path, apart: bool = False) -> None:
    """Each model in turn; apart, or with several models, below OUTPUT/MODEL."""
    from rich.console import Console

    with needing("eval"):
        from splice.report.facts import distinct_names

        from .models import open_model
        from .run import evaluate
        from .screen import Screen

        screen = Screen(Console())
        for task, settings in runs:
            task.variants(settings)  # what is wrong is said before a model is loaded
        called = [name.replace("/", "-") for name in distinct_names([Path(name) for name in names])]
        for name, short in zip(names, called, strict=True):
            model, opened = None, None
            for task, settings in runs:
                wanted = settings.model_dump(include=ENGINE)
                if model is None or wanted != opened:
                    model, opened = open_model(name, settings), wanted
                    if model.note:
                        screen.say(model.note)
                evaluate(model, task, settings, output / short if apart or len(names) > 1 else output, screen)


ENGINE = {"backend", "device", "dtype", "bos", "chunk", "batch_tokens", "max_context"}  # what a model is opened with


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """A missing library as a sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SpliceError(
            f"splice eval needs {error.name}, which is not installed: pip install 'splice-data[{extra}]'"
        ) from None


def gathered(arguments: list[str]) -> list[str]:
    """`--positions 0 37 74` as one word: of the settings that take several values, all up to the next option."""
    if len(arguments) < 2 or arguments[1] not in TASKS:
        return arguments
    several = {f"--{name.replace('_', '-')}" for name in lists(TASKS[arguments[1]].settings)}
    out: list[str] = []
    taking = False
    for argument in arguments:
        if taking and not argument.startswith("-") and not out[-1].startswith("-"):
            out[-1] += f",{argument}"
            continue
        if argument.startswith("-"):
            taking = argument in several
        out.append(argument)
    return out
