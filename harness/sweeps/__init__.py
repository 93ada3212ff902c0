"""Many runs, and what compares them."""
