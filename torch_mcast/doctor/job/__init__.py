"""All ranks of a job against each other, when the doctor runs under a launcher.

rendezvous  exchange through a TCPStore, bounded in time
facts       facts that a rank reports about itself
compare     differences between ranks, as findings
reach       which ranks receive from which: datagrams and connections between all ranks
diagnose    the matrix of that, and causes of missing contact
run         the steps of the whole check
"""

from torch_mcast.doctor.job.run import run

__all__ = ["run"]
