"""Charts as inline SVG that takes its colours and its font from the page.

matplotlib draws with colours that stand for names; in the SVG they become CSS variables, so that one drawing serves light and
dark. Ids get the chart's own prefix, text stays text, and nothing in it depends on when it was drawn.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WIDTH = 400  # units of a chart's width: as many CSS pixels on a wide screen, somewhat fewer on a phone
SMALL, LABEL = 12, 13  # of text, in the same units

INK, MUTED, GRID, PAPER, PADDING = "#fe0001", "#fe0002", "#fe0003", "#fe0004", "#fe0005"
SERIES = tuple(f"#fe01{i:02x}" for i in range(6))
SCALE = tuple(f"#fe02{i:02x}" for i in range(6))  # from a low value to a high one
TINTS = tuple(f"#fe03{i:02x}" for i in range(6))  # of documents that follow each other
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
MARKERS = "osD^vP"

VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", PADDING: "padding"}
VARIABLES |= {code: f"series-{i}" for i, code in enumerate(SERIES)}
VARIABLES |= {code: f"scale-{i}" for i, code in enumerate(SCALE)}
VARIABLES |= {code: f"tint-{i}" for i, code in enumerate(TINTS)}

STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.color": INK,
    "font.size": SMALL,
    "axes.labelsize": LABEL,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "figure.facecolor": "none",
}


@contextmanager
def drawing() -> Iterator[None]:
    """The style of all charts, for the time they are drawn; the user's own (a matplotlibrc) has no part in it."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font draws the text
        yield


def canvas(height: int, left: int = 58, right: int = 14, top: int = 12, bottom: int = 44) -> tuple[Any, Any]:
    """A figure of WIDTH by `height` units, and its axes within margins in the same units."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    box = (left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, (height - top - bottom) / height)
    return figure, figure.add_axes(box)


def plain_canvas(height: int) -> tuple[Any, Any]:
    """A figure without axes whose coordinates are its units, y downwards."""
    figure, axes = canvas(height, 0, 0, 0, 0)
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    return figure, axes


def svg(figure: Any, name: str) -> str:
    """The figure as an <svg> element for a page. name: the chart's, which its ids begin with."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#(\w+)', text))
    text = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], name, used), text)
    return re.sub(r">\s+<", "><", text).strip()


def _tag(tag: str, name: str, used: set[str]) -> str:
    """One tag as the page wants it. Text between tags is never touched: it may hold anything."""
    if tag.startswith("<svg"):
        box = re.search(r'viewBox="[^"]*"', tag)
        return f'<svg class="drawing" {box[0] if box else ""} aria-hidden="true" focusable="false">'
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r'xlink:href="#|href="#', f'href="#{name}-', tag)
    tag = tag.replace("url(#", f"url(#{name}-")
    tag = re.sub(r" font-family: [^;\"]*;?", "", tag)
    tag = re.sub(r"#fe0[0-3][0-9a-f]{2}", lambda m: f"var(--{VARIABLES[m[0]]})" if m[0] in VARIABLES else m[0], tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(r"(\d\.\d{2})\d+", r"\1", tag)
    return re.sub(r"\s+", " ", tag)


def printable(text: str) -> str:
    """The text without characters that cannot be shown."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in text)


def short(text: str, most: int) -> str:
    """The text as a label of at most so many characters, its end kept: paths and names differ there."""
    text = " ".join(printable(text).split())
    return text if len(text) <= most else "…" + text[-(most - 1) :]
