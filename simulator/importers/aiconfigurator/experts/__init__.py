"""Times of experts: by kernel, by those of alike ones, and of the exchange between ranks."""
