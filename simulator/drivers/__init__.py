"""How the time of servers passes: alone, beside others, as a pipeline, or in lockstep."""
