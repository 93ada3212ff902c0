"""What is recorded while a run goes on."""
