"""What in-network aggregation can gain, by arithmetic: `torch-mcast model`. Imports no torch."""
