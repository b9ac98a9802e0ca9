"""Collectives of several backends measured side by side: `torch-mcast bench`.

All backends live in the same worker processes; each repetition goes over all of them in shuffled
order, so that a slow moment of the machine hits them alike. The parent imports no torch.
"""
