"""Does our scheduling core decide as real vLLM did, and how long did vLLM's steps take?

Public logs of vLLM have times of requests, not of steps. This package recovers the steps from such a log, lets our
scheduling core decide at the recovered times, and scores cost models on the recovered steps.
"""
