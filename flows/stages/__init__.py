"""One module for each stage: it reads params.yaml and the inputs, calls transformer_core, and writes outputs and record."""
