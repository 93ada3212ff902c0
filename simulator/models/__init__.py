"""Models and devices as the simulator sees them: shapes, weights and memory."""
