"""Applications that hang, in a mesh of broker processes under load: `python -m benchmarks.trials.recipients`."""
