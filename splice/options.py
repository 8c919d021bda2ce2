"""A command line made from settings: a pydantic field becomes a typer option with its help, default and panel."""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from .errors import SpliceError
from .settings import choices


def option(described: dict[str, Any], *names: str) -> Any:
    """The annotation of a typer option for a setting: its annotation, default, help, panel."""
    default = described["default"]
    shown = f" [dim]({default})[/]" if default not in (None, []) and default is not False else ""
    made = typer.Option(
        *names,
        help=described["help"] + shown,
        show_default=False,
        rich_help_panel=described["panel"],
        metavar=described.get("metavar"),
    )
    values = choices(described["annotation"])
    kind = Literal[values] if values else described["annotation"]
    return Annotated[kind | None, made]


def parameter(name: str, annotation: Any, default: Any) -> signatures.Parameter:
    """A keyword of a command."""
    return signatures.Parameter(name, signatures.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def command(function: Callable[..., None], parameters: list[signatures.Parameter], help: str) -> Callable[..., None]:
    """A function that typer reads `parameters` from."""

    def called(**flags: Any) -> None:
        function(**flags)

    called.__signature__ = signatures.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__doc__ = help
    return called


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """A library that is not installed as a sentence: `what` needs it, `extra` brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SpliceError(
            f"{what} needs {error.name}, which is not installed: pip install 'splice-data[{extra}]'"
        ) from None


def plain(annotation: Any) -> Any:
    """Without "or None"; lists are one word of the command line."""
    if get_origin(annotation) in (Union, type(int | str)):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        annotation = kinds[0] if len(kinds) == 1 else str
    if get_origin(annotation) in (list, Annotated):
        return str
    return annotation
