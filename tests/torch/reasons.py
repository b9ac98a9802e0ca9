"""Why a test that Gloo passes does not pass with mcast, or passes only under Gloo's name."""

REASONS: dict[str, str] = {}
