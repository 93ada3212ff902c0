"""How far off is the simulator? Makes every table of docs/fidelity.md, from measured runs."""
