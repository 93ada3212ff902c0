"""Which policies a test is for."""

from engine.core.policies import POLICIES
from engine.core.scheduler_options import SchedulerOptions

ON_ANY_POOL = sorted(name for name, policy in POLICIES.items() if not policy.uses_radix_tree)
"""Those that go with every eviction rule but the radix tree."""
SGLANG = SchedulerOptions(policy="sglang", eviction="radix", allocation="chunk", watermark=0.0)
"""SGLang's rules, without overlap scheduling."""
