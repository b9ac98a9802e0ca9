"""All ranks of a job against each other, when the doctor runs under a launcher.

rendezvous  exchange through a TCPStore, bounded in time
facts       what a rank tells the others about itself
compare     differences between ranks, as findings
reach       who hears whom: datagrams and connections between all ranks
diagnose    the matrix of it, and why some do not hear each other
run         the course of it all
"""

from torch_mcast.doctor.job.run import run

__all__ = ["run"]
