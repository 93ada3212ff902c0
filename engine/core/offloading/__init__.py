"""KV offloading as vLLM's OffloadingConnector does it: what is computed is stored on the host, chunk by chunk."""
