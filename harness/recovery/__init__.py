"""Steps of real vLLM runs, recovered from per-request logs, and what our scheduling core decides at their times."""

from harness.recovery.request_log import LogError
from harness.recovery.run import RecoveredRun, recover

__all__ = ["LogError", "RecoveredRun", "recover"]
