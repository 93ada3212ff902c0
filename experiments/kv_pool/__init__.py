"""The KV pool of vLLM: our formula beside published log lines."""
