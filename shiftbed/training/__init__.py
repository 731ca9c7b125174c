"""One job: streams, batches, steps, evaluation, checkpoints, records and recipes."""
