"""What in-network aggregation can gain and what a SmartNIC needs, by arithmetic: `torch-mcast estimate`.
Imports no torch."""
