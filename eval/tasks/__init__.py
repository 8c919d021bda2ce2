"""The evaluations, in the order the command line shows them."""

from __future__ import annotations

from ..task import Task
from .dbpedia import Dbpedia
from .hotpotqa import Hotpot
from .kv import Kv
from .nq import Nq
from .perplexity import Perplexity
from .qasper import Qasper
from .trec import Trec

TASKS: dict[str, Task] = {task.name: task for task in (Kv(), Trec(), Dbpedia(), Hotpot(), Qasper(), Nq(), Perplexity())}
