"""What every evaluation can be told: names, types, defaults, help. A task's own settings are in its file.

The command line and the YAML files are made from these classes, as the trainer's are from its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from splice.errors import SpliceError
from splice.options import plain


def setting(default: Any, help: str, panel: str = "Task", **bounds: Any) -> Any:
    """A setting's field; `panel` is where `--help` shows it."""
    return Field(default=default, description=help, json_schema_extra={"panel": panel}, **bounds)


def _split(value: Any) -> Any:
    """ "0,37,74" and "0 37 74" of the command line are lists."""
    if isinstance(value, str):
        return value.replace(",", " ").split()
    return [value] if isinstance(value, int) else value


def _word(value: Any) -> Any:
    """YAML's yes and no are booleans."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


YesNo = Annotated[Literal["auto", "yes", "no"], BeforeValidator(_word)]
Integers = Annotated[list[int], BeforeValidator(_split)]


class EngineSettings(BaseModel):
    """How a model is run, the same for every task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = setting(0, "of demonstrations, dictionaries, distractors and the bootstrap", "Run", ge=0)
    data_dir: Path | None = setting(None, "a directory with the task's files, searched below; default: the hub", "Run")
    unverified_data: bool = setting(False, "take files whose sha256 is not a known one; the results say so", "Run")
    too_long: Literal["error", "skip"] = setting(
        "error", "a prompt over the model's context: stop, or leave its group out and count it", "Run"
    )
    max_context: int | None = setting(None, "tokens; default: what the model's config says", "Run", ge=16)
    check: int = setting(8, "queries whose teacher-forced match is compared with real generation", "Run", ge=0)
    backend: Literal["auto", "splice", "transformers"] = setting(
        "auto", "auto: our model for Llamas (and FoT's memory), transformers for the rest", "Engine"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to compute", "Engine")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "of the computation; auto: bfloat16 on CUDA, float32 on a CPU", "Engine"
    )
    bos: YesNo = setting("auto", "begin prompts with the tokenizer's BOS; auto: as its files say", "Engine")
    chunk: int = setting(2048, "tokens of a prefix that are read at a time", "Engine", ge=16)
    batch_tokens: int = setting(4096, "tokens of queries in one forward pass", "Engine", ge=1)


ENGINE = {"backend", "device", "dtype", "bos", "chunk", "batch_tokens", "max_context"}  # what a model is opened with


class TaskSettings(EngineSettings):
    """What tasks add their own settings to. answer_tokens: where answers are generated."""

    scorer: Literal["match", "likelihood", "generate"] = setting(
        "match",
        "how an answer is found; where there are labels both of the first two are in the results, this one first",
    )
    answer_tokens: int = setting(32, "generated at most", ge=1)
    limit: int | None = setting(None, "queries of a group at most, the first; for a quick look", ge=1)


def flags(settings: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Name -> annotation, default, help, panel of every setting: the task's own first."""
    described = {}
    for name, info in settings.model_fields.items():
        extra = info.json_schema_extra
        assert isinstance(extra, dict)
        described[name] = {
            "annotation": plain(info.annotation),
            "default": _words(info.default),
            "help": info.description,
            "metavar": _metavar(info.annotation),
            **extra,
        }
    return dict(sorted(described.items(), key=lambda item: item[1]["panel"] != "Task"))


def _metavar(annotation: Any) -> str | None:
    """Of settings that take several values."""
    if not _is_list(annotation):
        return None
    return "INT...|all" if "'all'" in str(annotation) else "INT..."


def _is_list(annotation: Any) -> bool:
    return "list[" in str(annotation)


def lists(settings: type[BaseModel]) -> set[str]:
    """The settings that take several values."""
    return {name for name, info in settings.model_fields.items() if _is_list(info.annotation)}


def make(settings: type[BaseModel], values: Mapping[str, Any], where: str = "") -> Any:
    """Settings of names and values, None where not given.

    where: the place in a file, for errors; "" is the command line. Raises SpliceError for one that does not exist, or is out
    of bounds.
    """
    try:
        return settings.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise SpliceError("\n".join(_sentence(problem, settings, where) for problem in error.errors())) from None


def _sentence(problem: Any, settings: type[BaseModel], where: str) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    place = f"{where}: {name}" if where else f"--{name.replace('_', '-')}"
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, settings.model_fields, 1)
        return f"{place}: no such setting" + (f"; did you mean {close[0]}?" if close else "")
    return f"{place}: {problem['msg']} (given: {problem['input']!r})"


def _words(default: Any) -> Any:
    return " ".join(map(str, default)) if isinstance(default, list) else default
