"""Command lines of other tools, read as a configuration and written from one."""

KEYS = ("import_vllm", "import_sglang", "import_trtllm")
