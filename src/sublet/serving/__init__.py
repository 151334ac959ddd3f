"""Many models on one device: front ends, the catalogue of models, and the server of both."""
