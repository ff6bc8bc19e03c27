"""Upstreams that answer from one invented, deterministic data set, with real behaviour behind them."""
