"""Models of Hugging Face: what a config.json says, as keys of a configuration."""
