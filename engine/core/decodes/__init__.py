"""The decoding sequences behind one interface, with one calendar for even and one for uneven growth."""
