"""What a training run says: metrics.jsonl, one JSON line a step, the same on the screen, and to whoever is asked to track it.

What expert layers do is in experts.jsonl, where a model has them.
"""

from .experts import EXPERTS, ExpertLoads, read_experts
from .metrics import METRICS, Metrics, Validation, read_metrics
from .run_log import RunLog
from .trackers import require_trackers

__all__ = [
    "EXPERTS",
    "METRICS",
    "ExpertLoads",
    "Metrics",
    "RunLog",
    "Validation",
    "read_experts",
    "read_metrics",
    "require_trackers",
]
