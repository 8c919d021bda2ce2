"""What a training run says: metrics.jsonl, one JSON line a step, the same on the screen, and to whoever is asked to track it."""

from .metrics import METRICS, Metrics, Validation, read_metrics
from .run_log import RunLog
from .trackers import require_trackers

__all__ = ["METRICS", "Metrics", "RunLog", "Validation", "read_metrics", "require_trackers"]
