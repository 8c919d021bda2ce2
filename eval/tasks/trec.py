"""TREC question classification (Li and Roth 2002), 6 coarse or 50 fine labels, from demonstrations in the prompt."""

from __future__ import annotations

from typing import Literal

from splice.errors import SpliceError

from ..data import AGAIN, Known, field, find, hub, text_lines
from ..demonstrations import asked
from ..settings import setting
from ..task import DataFile, Loaded
from .incontext import Example, InContext, InContextSettings, Rows, disjoint

FINE = {
    "ABBR": "abb exp",
    "DESC": "def desc manner reason",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant product religion sport "
    "substance symbol techmeth termeq veh word",
    "HUM": "desc gr ind title",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other perc period speed temp volsize weight",
}
LABELS = {
    "coarse": tuple(FINE),
    "fine": tuple(f"{coarse}:{fine}" for coarse, names in FINE.items() for fine in names.split()),
}

# The publisher's file, and one in UTF-8 without the last newline.
TRAIN = Known(
    "train_5500.label",
    (
        "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
        "202e3e1ad6143ed4f147f199324277e25b2573a78c08c3af1ff840b49c0779de",
    ),
)
TEST = Known(
    "TREC_10.label",
    (
        "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
        "69b2d406aa15b3b514b6bf9b3bf1fa2c3515ce7ae744651173f8e57347bfb2a9",
    ),
)
SOURCE = "get both files from https://cogcomp.seas.upenn.edu/Data/QA/QC/, or leave out --data-dir for the hub's"
HUB = "SetFit/TREC-QC"  # without a loading script, which CogComp/trec has


class TrecSettings(InContextSettings):
    """Of TREC. queries: all 500 by default, the same for every set."""

    labels: Literal["coarse", "fine"] = setting("coarse", "6 or 50")


class Trec(InContext):
    """Every set is asked the same test questions."""

    name = "trec"
    help = "TREC question classification from demonstrations"
    settings = TrecSettings

    def title(self, settings: TrecSettings) -> str:
        return f"trec-{settings.labels}"

    def load(self, settings: TrecSettings) -> Loaded:
        if settings.data_dir is None:
            (train, train_file), (test, test_file) = _hub("train", settings), _hub("test", settings)
        else:
            (train, train_file), (test, test_file) = _file(TRAIN, settings), _file(TEST, settings)
        rows = Rows(disjoint(train, test), test, LABELS[settings.labels])
        return Loaded(rows, (train_file, test_file))

    def ask(self, text: str) -> str:
        return f"Question: {text}\nType:"

    def asked(self, settings: TrecSettings, rows: Rows, s: int) -> list[int]:
        return asked(self.name, len(rows.test), settings.queries, settings.seed)


def _file(known: Known, settings: TrecSettings) -> tuple[list[Example], DataFile]:
    found = find(settings, [known], SOURCE)
    return [_example(where, *line.partition(" ")[::2], settings) for where, line in text_lines(found)], found.record


def _hub(split: str, settings: TrecSettings) -> tuple[list[Example], DataFile]:
    rows, record = hub("trec", HUB, split, ("text", "label_original"))
    return [
        _example(where, field(where, row, "label_original"), field(where, row, "text"), settings) for where, row in rows
    ], record


def _example(where: str, label: str, text: str, settings: TrecSettings) -> Example:
    if label not in LABELS["fine"] or not text.strip():
        raise SpliceError(f"{where}: not a label of TREC and a question ({label[:40]!r}); {AGAIN}")
    # One question has a byte that is no text ("sister\xf0city").
    text = " ".join(text.replace("\ufffd", " ").replace("\xf0", " ").split())
    return Example(text, label if settings.labels == "fine" else label.partition(":")[0])
