"""Measures a profile (`simulator.profile.profile`) with the real engine's own kernels and layers on this machine.

    engine ──▶ operators   every operator at a grid of sizes, all layers in turn   ──▶ samples ──▶ tables ──▶ profile
           ──▶ steps       whole steps of the real engine, scheduling included     ──▶

`session` decides what to measure next within a time budget. The only part of the simulator that needs torch.
"""
