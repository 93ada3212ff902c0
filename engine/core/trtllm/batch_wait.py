"""Prompts that TensorRT-LLM holds back so that more of them share a step."""

from __future__ import annotations


class BatchWait:
    """Counts the steps for which prompts wait, as `_waiting_requests` of TensorRT-LLM's py_executor.py; earlier
    versions reckoned with the whole lengths of the prompts.

    Args:
        timeout_iters: for how many steps prompts wait at most; 0: for none.
        max_tokens_ratio: share of the tokens of a step from which prompts wait no longer; 0: they never wait.
    """

    def __init__(self, timeout_iters: int, max_tokens_ratio: float) -> None:
        self._timeout_iters = timeout_iters
        self._max_tokens_ratio = max_tokens_ratio
        self._num_waited = 0

    def holds_back(self, num_prompt_tokens: int, num_decodes: int, max_tokens: int) -> bool:
        """Whether the prompts of the next step wait, which has room for `max_tokens`; never while nobody decodes.

        Args:
            num_prompt_tokens: of those prompts, as many as the step would compute.
        """
        if not num_prompt_tokens or not num_decodes:
            return False
        is_enough = num_prompt_tokens + num_decodes >= self._max_tokens_ratio * max_tokens
        if is_enough or self._num_waited >= self._timeout_iters:
            self._num_waited = 0
            return False
        self._num_waited += 1
        return True
