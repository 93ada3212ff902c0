"""Who executes plans: one rank in this process, or several in their own."""
