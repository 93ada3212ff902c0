"""Charts, one concept per file: functions that turn the tables of results into a `Chart`."""
