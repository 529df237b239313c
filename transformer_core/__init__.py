"""The work of the pipeline: corpus, models, training, decoding, evaluation. Knows no orchestrator, no cache and no tracker."""
