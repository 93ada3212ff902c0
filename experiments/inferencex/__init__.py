"""How far off are simulations priced by NVIDIA's operator times, on public measurements?"""
