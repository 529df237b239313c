"""One module a stage: each knows params.yaml and the paths, calls transformer_core and writes the journal."""
