"""The embedded engine: a transformers model that is drawn from and trained in this process, on CPU or one GPU."""
