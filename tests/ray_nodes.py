"""A Ray cluster on this machine, however busy it is."""

from __future__ import annotations

from typing import Any

ATTEMPTS = 5  # Ray itself gives a node half a minute to start


def start_head(**node: Any) -> Any:
    """A cluster of one node."""
    from ray import cluster_utils

    make: Any = cluster_utils.Cluster  # without types
    for _ in range(ATTEMPTS - 1):
        try:
            return make(initialize_head=True, head_node_args=dict(node))
        except Exception as error:
            if "timed out" not in str(error):
                raise
    return make(initialize_head=True, head_node_args=dict(node))
