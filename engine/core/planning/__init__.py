"""From queue and running sequences to the plan of a step: the planner, and what a policy is asked."""
