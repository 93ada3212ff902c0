"""Names, in tables and figures, of what is compared between a measured run and its simulation."""

NAMES = {
    "ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL", "queue_time": "Queue time", "duration": "Duration",
    "request_throughput": "Request throughput", "output_throughput": "Output throughput",
    "total_token_throughput": "Total throughput", "preemptions": "Preemptions",
    "preempted_requests": "Preempted requests", "cached_tokens": "Cached tokens",
    "prefix_cache_hit_rate": "Cache-hit rate", "num_running": "Running", "num_waiting": "Waiting",
    "num_unfinished": "In the engine", "kv_cache_usage": "KV use",
}  # fmt: skip
