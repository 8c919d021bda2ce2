"""A command line made from settings: a pydantic field becomes a typer option with its help, default and panel."""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

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


def plain(annotation: Any) -> Any:
    """Without "or None"; lists are one word of the command line."""
    if get_origin(annotation) in (Union, type(int | str)):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        annotation = kinds[0] if len(kinds) == 1 else str
    if get_origin(annotation) in (list, Annotated):
        return str
    return annotation
