"""What mcpagent ships around its core, and the core loads by name: the only place that says where it is."""

# Values of `model.name` that are built instead of loaded: a `config.named_parts.ModelBuilder` each.
MODEL_BUILDERS = {"embedded": "mcpagent.demo.warm_start:BUILDER"}
# What `mcpagent smoke` proves a backend with if no model is named.
SMOKE_MODEL = "embedded"
# From the section `tools` to the built-in servers.
BUILTIN_SERVERS = "mcpagent.servers.provider:builtin_servers"
