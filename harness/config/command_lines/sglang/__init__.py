"""The command line of SGLang, both ways."""
