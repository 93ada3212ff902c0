"""How much of the KV that decodes share does attention read from memory? (`simulator/costs/shared_reads.py`)"""
