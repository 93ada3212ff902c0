"""What `task=serve` puts behind the server: the real engine, or the simulator in real time."""
