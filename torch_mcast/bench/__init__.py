"""Measures collectives of several backends side by side: `torch-mcast bench`.

All backends live in the same worker processes; each repetition runs all of them in shuffled order,
so that a slow moment of the machine affects them equally. The parent does not import torch.
"""
