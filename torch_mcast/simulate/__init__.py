"""What a network does with collectives, computed and (docs/simulator.md) simulated."""
