"""The schedulers of others: what is loaded of their source, and how their steps are read."""
