"""`python -m splice.train ...` is `splice train ...`, for torchrun."""

import os
import sys

from splice.cli import run

code = run(["train", *sys.argv[1:]])
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # all is written; taking torch's threads down in order now and then aborts a run that went well
