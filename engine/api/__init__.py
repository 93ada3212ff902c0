"""The engine as a library, in the shape of vLLM's offline API: `llm.py`, and the loop behind it in `llm_engine.py`."""
