"""What in-network aggregation can gain and what a SmartNIC needs, by arithmetic: `torch-mcast model`.
Imports no torch."""
