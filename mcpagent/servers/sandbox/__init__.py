"""Where code written by a model runs: never in this process, never without a sandbox."""
