"""From a row of a table (a JSON object, a Parquet row) to a document, or to the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import SpliceError
from .records import Document, Quarantined, SourceSettings

FOUND_FIELDS = 12  # as many of a row's fields as a message names
FOUND_CHARS = 40


def document(row: Mapping[str, Any], file: str, number: int, settings: SourceSettings) -> Document | Quarantined:
    """The row's document; its id is the row's own where settings.id_field is set, else FILE:NUMBER."""
    text = row.get(settings.text_field)
    if isinstance(text, str):
        try:
            text = text.encode()
        except UnicodeEncodeError:  # half a surrogate pair: bytes that are not UTF-8, for the filter to refuse
            text = text.encode("utf-8", "surrogatepass")
    elif not isinstance(text, bytes):
        return Quarantined(file, number, _no_field(row, settings.text_field, "--text-field", "a string"))
    if settings.id_field is None:
        name = f"{file}:{number}"
    else:
        value = row.get(settings.id_field)
        if not isinstance(value, (str, int)) or isinstance(value, bool) or value == "":
            return Quarantined(file, number, _no_field(row, settings.id_field, "--id-field", "a string or an integer"))
        name = valid_unicode(str(value))
    repo, path, domain = (_optional(row, f) for f in (settings.repo_field, settings.path_field, settings.domain_field))
    return Document(name, text, repo, path, domain)


def missing(field: str, found: Iterable[str], option: str) -> str:
    """The reason for a field that is not there, with those that are."""
    names = [valid_unicode(name[:FOUND_CHARS]) for name in sorted(found)]
    if len(names) > FOUND_FIELDS:
        names[FOUND_FIELDS:] = ["..."]
    return f'no field "{field}" (found: {", ".join(names) or "none"}); name it with {option}'


def require_fields(name: str, found: Iterable[str], settings: SourceSettings) -> None:
    """Raises SpliceError where the fields found lack one that every row must have."""
    found = set(found)
    for field, option in ((settings.text_field, "--text-field"), (settings.id_field, "--id-field")):
        if field is not None and field not in found:
            raise SpliceError(f"{name}: {missing(field, found, option)}")


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    return _KINDS.get(type(value), type(value).__name__)


def fields(settings: SourceSettings) -> list[str]:
    """The fields that are read, each once."""
    named = (
        settings.text_field,
        settings.id_field,
        settings.repo_field,
        settings.path_field,
        settings.domain_field,
    )
    return list(dict.fromkeys(name for name in named if name is not None))


def valid_unicode(text: str) -> str:
    r"""The text with half surrogate pairs written as \udXXX."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _no_field(row: Mapping[str, Any], field: str, option: str, wanted: str) -> str:
    if field not in row:
        return missing(field, list(row), option)
    value = row[field]
    if value == "":
        return f'field "{field}" is empty'
    return f'field "{field}" is {kind_of(value)}, not {wanted}'


_KINDS = {
    type(None): "null",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    int: "a number",
    float: "a number",
    str: "a string",
    bytes: "binary",
}


def _optional(row: Mapping[str, Any], field: str | None) -> str | None:
    value = None if field is None else row.get(field)
    if value is None or value == "":
        return None
    return valid_unicode(value if isinstance(value, str) else str(value))
