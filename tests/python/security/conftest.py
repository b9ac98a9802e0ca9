"""A lab with one host more than the job has ranks: the attacker's."""

import attackers
import pytest

from torch_mcast.lab import pytest_plugin

# Loaded by name: pytest takes plugins from the top-level conftest only, and this folder also runs
# alone.
_clusters, lab, lab_rights = (
    pytest_plugin._clusters,
    pytest_plugin.lab,
    pytest_plugin.lab_rights,
)


@pytest.fixture
def segment(lab):
    """Three hosts with a rank each and the attacker's host in one network segment."""
    return lab(preload=attackers.PRELOAD, hosts=attackers.RANKS + 1, ranks_per_host=1, rate="1gbit")
