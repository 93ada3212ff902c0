"""What the engine asks of an executor, which runs plans on one rank in this process or on several in their own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from engine.runner.inputs.step_inputs import StepInputs
from engine.runner.step_tokens import StepTokens


class Executor(Protocol):
    """Executes plans, on one rank in this process or on several ranks in processes of their own.

    Attributes:
        num_blocks: blocks of the KV cache, the same on every rank.
        num_host_blocks: blocks of host memory that blocks of the cache can move to.
        block_bytes: bytes of a block on one rank.
        backend_name: the attention backend.
    """

    num_blocks: int
    num_host_blocks: int
    block_bytes: int
    backend_name: str

    def execute(self, inputs: StepInputs) -> StepTokens:
        """Run a plan and return the tokens that it sampled."""
        ...

    def close(self) -> None:
        """Free everything; the executor cannot be used any more."""


@runtime_checkable
class LaunchingExecutor(Executor, Protocol):
    """Executes plans while the engine goes on: each is launched behind the one that runs, at most two at a time."""

    def launch(self, inputs: StepInputs) -> None:
        """Run a plan when those that were launched before it have ended; does not wait for it."""

    def collect(self) -> StepTokens:
        """Wait for the plan that was launched first, of those not collected, and return its tokens."""
        ...

    def forget(self) -> None:
        """Drop the tokens of all plans that were launched."""
