"""Many runs with a question: how much load a configuration bears, and which configuration is best."""
