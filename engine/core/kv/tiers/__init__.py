"""Memory behind the device."""
