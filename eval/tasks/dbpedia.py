"""DBpedia ontology classification (Zhang et al. 2015), 14 classes, from demonstrations in the prompt."""

from __future__ import annotations

from splice.errors import SpliceError

from ..data import AGAIN, Known, csv_rows, field, find, hub
from ..demonstrations import asked, halves
from ..settings import setting
from ..task import DataFile, Loaded
from .incontext import Example, InContext, InContextSettings, Rows, disjoint

LABELS = {  # class -> label, in the order of DBpedia14's class numbers
    "Company": "company",
    "EducationalInstitution": "school",
    "Artist": "artist",
    "Athlete": "athlete",
    "OfficeHolder": "politics",
    "MeanOfTransportation": "transportation",
    "Building": "building",
    "NaturalPlace": "nature",
    "Village": "village",
    "Animal": "animal",
    "Plant": "plant",
    "Album": "album",
    "Film": "film",
    "WrittenWork": "book",
}
CLASSES = tuple(LABELS)
PERMUTED = (  # SUBSET's, recovered from keywords: its class numbers are not DBpedia14's
    "Artist",
    "Company",
    "OfficeHolder",
    "Building",
    "Village",
    "Plant",
    "EducationalInstitution",
    "Animal",
    "Album",
    "WrittenWork",
    "NaturalPlace",
    "MeanOfTransportation",
    "Athlete",
    "Film",
)

TRAIN, TEST = Known("dbpedia_csv/train.csv"), Known("dbpedia_csv/test.csv")
SUBSET = Known(
    "dhim_val.csv",
    (
        "2fd38c71fe6e17c624361fc32d8224068fd39b3c43d2543b51e3563a40e5bec2",
        "3c3d46d39475eedbe4309352755a395ff12aed1ed740627b96781a5152e3867a",
    ),
    "5,000-row subset of DBpedia14 (classes permuted, no titles), half for demonstrations and half for tests",
)
SOURCE = "unpack dbpedia_csv.tgz of DBpedia14 there, or leave out --data-dir for the hub's"
HUB = "fancyzhx/dbpedia_14"


class DbpediaSettings(InContextSettings):
    """Of DBpedia. queries: drawn for each set."""

    queries: int = setting(500, "test items that a set is asked, drawn for each set", ge=1)


class Dbpedia(InContext):
    """Every set is asked test items of its own."""

    name = "dbpedia"
    help = "DBpedia classification from demonstrations"
    settings = DbpediaSettings

    def title(self, settings: DbpediaSettings) -> str:
        return "dbpedia"

    def load(self, settings: DbpediaSettings) -> Loaded:
        if settings.data_dir is None:
            (train, train_file), (test, test_file) = _hub("train"), _hub("test")
            files = (train_file, test_file)
        else:
            train, first = _file(settings, TRAIN, SUBSET)
            if first.subset:
                files = (first,)
                train, test = halves(train, settings.seed)
            else:
                test, second = _file(settings, TEST)
                files = (first, second)
        return Loaded(Rows(disjoint(train, test), test, tuple(LABELS.values())), files)

    def ask(self, text: str) -> str:
        return f"Input: {text} Type:"

    def asked(self, settings: DbpediaSettings, rows: Rows, s: int) -> list[int]:
        return asked(self.name, len(rows.test), settings.queries, settings.seed, s)


def _file(settings: DbpediaSettings, *files: Known) -> tuple[list[Example], DataFile]:
    """The published files have class, title, content; the subset has class, content."""
    found = find(settings, files, SOURCE)
    columns, names = (2, PERMUTED) if found.known is SUBSET else (3, CLASSES)
    return [_example(where, row[0], 1, names, row[-1]) for where, row in csv_rows(found, columns)], found.record


def _hub(split: str) -> tuple[list[Example], DataFile]:
    rows, record = hub("dbpedia", HUB, split, ("label", "content"))
    return [
        _example(where, field(where, row, "label", int), 0, CLASSES, field(where, row, "content"))
        for where, row in rows
    ], record


def _example(where: str, number: str | int, first: int, names: tuple[str, ...], content: str) -> Example:
    """number: of the class, from `first`."""
    place = int(number) - first if str(number).isdecimal() else -1
    if not 0 <= place < len(names):
        last = first + len(names) - 1
        raise SpliceError(f"{where}: class {str(number)[:40]!r}, expected {first} to {last}; {AGAIN}")
    return Example(" ".join(content.split()), LABELS[names[place]])
