"""The programs that are measured: plain scripts, which the workers of pools call as `main`."""
