"""A lab with one host more than the job has ranks: the attacker's."""

import attackers
import lab_fixtures
import pytest

# Loaded by name: pytest takes plugins from the top-level conftest only, and this folder also runs
# alone.
_clusters, lab, lab_rights = (
    lab_fixtures._clusters,
    lab_fixtures.lab,
    lab_fixtures.lab_rights,
)


@pytest.fixture
def segment(lab):
    """Three hosts with a rank each and the attacker's host in one network segment."""
    return lab(preload=attackers.PRELOAD, hosts=attackers.RANKS + 1, ranks_per_host=1, rate="1gbit")
