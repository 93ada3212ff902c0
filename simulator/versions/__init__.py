"""What the version of a server decides, and its front end."""
