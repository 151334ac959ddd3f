"""The part of a sweep that needs Keras: models are built, grouped by architecture, and trained, in
this process or in a worker."""
