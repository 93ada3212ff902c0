"""Who may enter: what a sequence needs, and the question that a policy is asked about it."""
