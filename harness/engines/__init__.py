"""What a run can drive: the simulated engine and the real one."""
