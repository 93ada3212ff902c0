"""Many runs of one command line."""
