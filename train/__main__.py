"""`python -m splice.train ...` is `splice train ...`, for torchrun."""

import sys

from splice.cli import run

sys.exit(run(["train", *sys.argv[1:]]))
