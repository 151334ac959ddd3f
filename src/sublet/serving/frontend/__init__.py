"""Runs in a front end: REST and gRPC in, calls to engines out."""
