"""Tables, metrics, summary and files of a run."""
