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
    "centroids": Rate(),
    "cluster": Rate(byte=3.7e-9),
    "assign": Rate(task=0.02, document=6.5e-7),
    "gather": Rate(task=6e-4, document=1e-6, byte=2.2e-9),
    "tokenizer": Rate(task=3.0),  # trained; a given one is proven in a fraction of it
    "tokenise": Rate(task=1.4e-3, byte=5.5e-9),
    "embed": Rate(),  # by the encoder's size, below
    "index": Rate(task=1e-3, byte=6e-9),
    "search": Rate(task=1e-3, document=15e-6),  # and by the pack's size, below
    "walk": Rate(task=3e-3, document=14e-6),
    "lay": Rate(task=4e-4),
    "write": Rate(document=6e-6),
}
# Packs by cluster: for each byte of the sample, or of the text, and for each of these and each cluster.
CENTROIDS_BYTE, CENTROIDS_PAIR, CLUSTER_PAIR = 9e-9, 6.4e-11, 3.8e-12
CENTROIDS_BYTES_PER_BYTE = 2.5  # of the sample, in memory
NEAR_READ_BYTE, NEAR_ASSIGN_DOCUMENT = 5.2e-9, 3.7e-6  # signatures of near-duplicates, and their clusters
READ_FILE = 20e-6  # of a tree, where each document is a file

# Searching one document: a query meets every document of its pack, in a time that grows slower than the documents' length.
SEARCH_PAIR = 4.1e-9
SEARCH_PAIR_BYTES = 7_200  # mean length at which the pair was measured
SEARCH_LENGTH_POWER = 0.6
DENSE_PAIR = 2.5e-11  # for each dimension of the embeddings
LOAD_INDEX_BYTE = 1.8e-9  # of the pack's text, for a process that has not yet searched it

WALK_PAIR = 1e-10  # a document of the pack, for the few whose neighbours are all used

EMBED_FLOPS = 130e9  # a second, counted as if all float32 weights multiplied, embedding tables too
WRITE_TOKEN = 1.3e-8
LAY_TOKEN, WRITE_LAID_TOKEN = 6e-9, 1.15e-8  # where examples are laid out first
OPEN_PLAN, OPEN_PLAN_DOCUMENT, OPEN_FILE = 1.2e-3, 7.6e-8, 3.9e-4  # of a pack

START = 2.0  # the command: interpreter, Beam, listing, compiled code, the end
FIRST_INDEX = 0.75  # of that, in the first task of index: compiled code that is loaded
START_WORKER = 2.5  # one process of a cluster: interpreter, Beam, compiled code, tokenizer
DRIVER_TASK = 4e-4  # descriptor, receipt, Beam's element

# Memory, in bytes: of a process that runs tasks one after the other, and of a build in threads of one process.
PROCESS_BYTES = 260 * 2**20  # interpreter, Arrow, compiled code
TOKENISE_BYTES_PER_BYTE = 4.3  # of a part's text
INDEX_BYTES_PER_BYTE = 1.9  # of the pack's text, as below
SEARCH_BYTES_PER_BYTE = 0.7
WALK_BYTES_PER_BYTE, WALK_BYTES_PER_DOCUMENT = 0.52, 2_700
SHARD_BYTES = 450 * 2**20  # a shard on its way to Parquet
TORCH_BYTES = 900 * 2**20  # torch and a batch
ASSIGN_DOCUMENT_BYTES = 76
NEAR_DOCUMENT_BYTES = 67  # besides, where near-duplicates are found
LOCAL_BYTES, LOCAL_BYTES_PER_BYTE = 650 * 10**6, 2.5  # by the text of a pack
LOCAL_WORKER_BYTES = 200 * 10**6
DRIVER_TASK_BYTES = 1_000  # a task, its descriptor and its receipt

# What the stages leave, in bytes.
READ_DOCUMENT, KEYS_DOCUMENT, SIGNATURE = (
    105,
    45,
    512,
)  # beside the text; what assign reads of that; for near-duplicates
PACK_DOCUMENT = 60
TOKEN = 2  # of a vocabulary up to 65,536
PROVENANCE_DOCUMENT = 10
INDEX_TEXT_BYTE, INDEX_DOCUMENT = 0.12, 200
GRAPH_NEIGHBOUR = 5
PLAN_DOCUMENT = 18
LAID_EXAMPLE = 2_200  # beside its tokens and its documents
DATA_TOKEN = 0.65

TOKENS_PER_BYTE = 0.36
