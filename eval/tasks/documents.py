"""Documents in a prompt, numbered from 1, as in Lost in the Middle (Liu et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable

Document = tuple[str, str]  # title, text


def numbered(documents: Iterable[Document]) -> str:
    """A line for each."""
    return "\n".join(f"Document [{i}](Title: {title}) {text}" for i, (title, text) in enumerate(documents, 1))
