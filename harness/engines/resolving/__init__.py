"""From a configuration to the parts that an engine is made of."""
