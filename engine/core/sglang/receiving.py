"""In which steps SGLang's scheduler receives requests: in all, or in one of several with decodes alone."""

from __future__ import annotations


class Receiving:
    """Counts steps as SGLang's `SchedulerRecvSkipper` (managers/scheduler_recv_skipper.py): behind a step with prompts,
    or where nobody runs, requests are received at once.

    Args:
        interval: steps with decodes alone between two times at which requests are received.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._count = 0
        self._num_decode_steps = 0

    def is_due(self, num_decode_steps: int, *, is_idle: bool, had_prompts: bool) -> bool:
        """Whether requests are received before the step that is about to be planned.

        Args:
            num_decode_steps: steps with decodes that were planned so far.
            is_idle: nobody runs.
            had_prompts: the last step had prompts.
        """
        num_passed = num_decode_steps - self._num_decode_steps
        self._num_decode_steps = num_decode_steps
        if is_idle or had_prompts:
            self._count = 0
            return True
        self._count = (self._count + num_passed) % self._interval
        return num_passed > 0 and self._count == 0
