"""From the files under conf/ to a configuration, and their explanations."""
