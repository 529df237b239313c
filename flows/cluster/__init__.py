"""A stage on other machines: work pools, nodes, the nodes of one training, their ranks."""
