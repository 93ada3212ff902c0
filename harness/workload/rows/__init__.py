"""From a trace file to rows that were checked."""
