"""Steps of real vLLM runs, recovered from per-request logs, and what our scheduling core decides at their times."""

from experiments.recovery.request_log import LogError
from experiments.recovery.recovered_run import RecoveredRun, recover

__all__ = ["LogError", "RecoveredRun", "recover"]
