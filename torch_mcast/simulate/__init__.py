"""Network behaviour of collectives, computed and (docs/simulator.md) simulated."""
