"""One validated configuration, composed of YAML files and `--set` overrides."""
