"""What the work of each stage costs: the one set of rates that --dry-run and `splice plan` reckon with.

Measured by bench/rates.py (and bench/knn.py, bench/dense.py for searching) on one core of a machine with two cores of an AMD
EPYC, AVX-512 and a local disk, over the C code of Linux 6.1, packs of 2 to 180,000 documents of 500 to 20,000 characters. A core
of another machine, or one that waits for its storage, takes longer; `splice plan --measure SRC` measures on the spot.
"""

from __future__ import annotations

from dataclasses import dataclass

MACHINE = "one core of an AMD EPYC with AVX-512, files on a local disk, C code"


@dataclass(frozen=True)
class Rate:
    """CPU seconds that a stage takes for each task, document and byte of text."""

    task: float = 0.0
    document: float = 0.0
    byte: float = 0.0


STAGES: dict[str, Rate] = {
    "read": Rate(document=6.5e-6, byte=3.2e-9),
    "assign": Rate(task=0.5, document=1.4e-6),
    "gather": Rate(task=6e-4, document=1e-6, byte=2.2e-9),
    "tokenizer": Rate(task=2.7),  # trained; a given one is proven in a fraction of it
    "tokenise": Rate(task=1.4e-3, byte=5.3e-9),
    "embed": Rate(),  # by the encoder's size, below
    "index": Rate(task=1e-3, byte=4e-9),
    "search": Rate(task=1e-3, document=15e-6),  # and by the pack's size, below
    "walk": Rate(task=0.02, document=8e-6),
    "write": Rate(document=4e-6),
}
NEAR_READ_BYTE = 5.2e-9  # signatures of near-duplicates
READ_FILE = 20e-6  # of a tree, where each document is a file

# Searching one document: a query meets every document of its pack, in a time that grows slower than the documents' length.
SEARCH_PAIR = 4.1e-9
SEARCH_PAIR_BYTES = 7_200  # mean length at which the pair was measured
SEARCH_LENGTH_POWER = 0.6
DENSE_PAIR = 2.5e-11  # for each dimension of the embeddings
LOAD_INDEX_BYTE = 1.8e-9  # of the pack's text, for a process that has not yet searched it

WALK_PAIR = 1.2e-10  # a document of the pack, for the few whose neighbours are all used

EMBED_FLOPS = 130e9  # a second, counted as if all float32 weights multiplied, embedding tables too
WRITE_TOKEN = 1.2e-8
# An example of a pack that the process has not at hand: its plan, then its documents' names, then its files.
PLANS_AT_HAND, WRITE_PLAN, WRITE_PLAN_DOCUMENT = 4, 1.2e-3, 7.6e-8
PACKS_AT_HAND, WRITE_PACK_DOCUMENT, WRITE_PACK_FILE = 8, 1.5e-7, 3.9e-4

START = 1.3  # the command: interpreter, Beam, listing, the end
START_WORKER = 2.5  # one process of a cluster: interpreter, Beam, compiled code, tokenizer
DRIVER_TASK = 4e-4  # descriptor, receipt, Beam's element

# Memory.
PROCESS_BYTES = 260 * 2**20  # interpreter, Arrow, compiled code
INDEX_BYTES_PER_BYTE = 1.9  # of the pack's text, while it is indexed
SEARCH_BYTES_PER_BYTE = 0.65
WALK_BYTES_PER_BYTE = 1.1
SHARD_BYTES = 450 * 2**20  # a shard on its way to Parquet
PART_BYTES = 12  # of a part's text, while it is tokenised
ASSIGN_DOCUMENT_BYTES = 140
ASSIGN_SIGNATURE_BYTES = 512  # more, to find near-duplicates
DRIVER_TASK_BYTES = 2_500  # the task, its descriptor and its receipt

# What the stages leave, in bytes.
READ_DOCUMENT = 75  # beside the text
PACK_DOCUMENT = 60
TOKEN = 2  # of a vocabulary up to 65,536
PROVENANCE_DOCUMENT = 10
INDEX_TEXT_BYTE, INDEX_DOCUMENT = 0.12, 200
GRAPH_NEIGHBOUR = 5
PLAN_DOCUMENT = 18
DATA_TOKEN = 0.65

TOKENS_PER_BYTE = 0.36
