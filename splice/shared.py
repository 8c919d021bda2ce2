"""One copy a process of what is dear to open, for all of its threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


def shared(maxsize: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An lru_cache that computes each value once even when several threads ask for it at the same time."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        cached = functools.lru_cache(maxsize)(function)
        lock = threading.Lock()

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            with lock:
                return cached(*args)

        return call

    return decorate
