"""`splice eval`: a command for each task, made from its settings; `harness` for lm-eval's tasks; `run` for a list of tasks in a
file; `compare` and `plot`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from splice.options import command, needing, option, parameter

from .settings import ENGINE, EngineSettings, flags, lists, make
from .task import Task
from .tasks import TASKS

HELP = """Evaluate long-context models: lost in the middle, in-context learning, QA, perplexity by position.

A model is a checkpoint of splice train, a Hugging Face directory or a name on the hub. A run that was interrupted goes on where it stopped.
"""

app = typer.Typer(
    name="eval",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_MODEL = typer.Option(
    help="checkpoint, Hugging Face directory or hub name; several: each below --output", rich_help_panel="Run"
)
_OUTPUT = typer.Option(help="where results go, each in a directory of its run's name", rich_help_panel="Run")
_WHERE = [parameter("model", Annotated[list[str], _MODEL], ...), parameter("output", Annotated[Path, _OUTPUT], ...)]


def _task_command(task: Task) -> Callable[..., None]:
    parameters = [
        *_WHERE,
        *(parameter(flag, _option(flag, one), None) for flag, one in flags(task.settings).items()),
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

    with needing("splice eval", "eval"):
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

    with needing("splice eval", "eval"):
        from .run import run_all
        from .screen import Screen

        run_all(runs, _places(names, output, apart), Screen(Console()))


def _places(names: list[str], output: Path, apart: bool = False) -> list[tuple[str, Path]]:
    """Each model and where its results go."""
    from splice.report.facts import distinct_names

    short = [name.replace("/", "-") for name in distinct_names([Path(name) for name in names])]
    below = [output / name if apart or len(names) > 1 else output for name in short]
    return list(zip(names, below, strict=True))


HARNESS_HELP = """Tasks of lm-evaluation-harness (MMLU, GSM8K and the rest), where what prompts share is read once.

Prompts, examples and metrics are lm-eval's own, and log-likelihoods and texts those of its hf model.
"""


def _harness_command() -> Callable[..., None]:
    def own(name: str, kind: Any, default: Any, help: str, **bounds: Any) -> Any:
        flag = f"--{name.replace('_', '-')}"
        return parameter(
            name, Annotated[kind, typer.Option(flag, help=help, rich_help_panel="Task", **bounds)], default
        )

    parameters = [
        *_WHERE,
        own("tasks", str, ..., "names, groups and patterns (mmlu_*) of lm-eval's tasks, as mmlu,gsm8k"),
        own("num_fewshot", int | None, None, "examples before each question; default: the task's own", min=0),
        own("limit", int | None, None, "documents of each task, the first; for a quick look", min=1),
        own("include_path", Path | None, None, "a directory with more tasks, lm-eval's YAML files"),
        own(
            "too_long", Literal["error", "truncate"], "error", "a prompt over the context: stop, or cut it on the left"
        ),
        own("apply_chat_template", bool, False, "prompts as the tokenizer's chat template has them"),
        *(parameter(flag, _option(flag, one), None) for flag, one in flags(EngineSettings).items() if flag in ENGINE),
    ]

    def called(model: list[str], output: Path, tasks: str, include_path: Path | None, **values: Any) -> None:
        from rich.console import Console

        settings = make(EngineSettings, {name: values.pop(name) for name in ENGINE})
        with needing("splice eval harness", "harness"):
            from .harness import find_tasks, open_tasks, run_harness
            from .models import open_model
            from .screen import Screen

            screen, manager = Screen(Console()), open_tasks(include_path)
            names = tasks.replace(",", " ").split()
            find_tasks(names, manager)  # what is wrong is said before a model is loaded
            for name, below in _places(model, output):
                opened = None  # the one before goes first
                opened = open_model(name, settings)
                if opened.note:
                    screen.say(opened.note)
                run_harness(opened, names, settings, below, screen, manager, **values)

    return command(called, parameters, HARNESS_HELP)


app.command("harness", short_help="MMLU, GSM8K and all other tasks of lm-evaluation-harness.")(_harness_command())


def gathered(arguments: list[str]) -> list[str]:
    """`--positions 0 37 74` as one word, `--model A B` as that option twice: all up to the next option."""
    if len(arguments) < 2 or arguments[1] not in TASKS:
        return arguments
    several = {f"--{name.replace('_', '-')}" for name in lists(TASKS[arguments[1]].settings)}
    out: list[str] = []
    option = ""
    for argument in arguments:
        more = not argument.startswith("-") and out and not out[-1].startswith("-")
        if more and option in several:
            out[-1] += f",{argument}"
            continue
        if more and option == "--model":
            out.append(option)
        option = argument if argument.startswith("-") else option
        out.append(argument)
    return out
