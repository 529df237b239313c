"""The work of the pipeline: corpus, models, training, decoding, evaluation. It depends on no orchestrator, cache or tracker."""
