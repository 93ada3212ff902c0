"""From a plan to the arrays of a step, and the decoding sequences on the device."""
