"""Other simulators beside ours."""
