"""The engine: a worker that holds models and runs their batches."""
