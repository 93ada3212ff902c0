"""Which policies a test is for."""

from engine.core.policies import POLICIES
from engine.core.scheduler_options import SchedulerOptions

ON_ANY_POOL = sorted(name for name, policy in POLICIES.items() if not policy.needs)
"""Those that go with every eviction rule that no policy has for itself."""
SGLANG = SchedulerOptions(policy="sglang", eviction="radix", allocation="chunk", watermark=0.0)
"""SGLang's rules, without overlap scheduling."""
TRTLLM = SchedulerOptions(policy="trtllm", eviction="stored", watermark=0.0, queue="fcfs")
"""TensorRT-LLM's rules, with chunked context and without its overlap scheduler."""
