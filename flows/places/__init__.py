"""Stages on other machines: Prefect work pools, nodes, groups of nodes that train together, their ranks."""
