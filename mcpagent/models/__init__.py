"""Models and tokens: loading, LoRA, and how a conversation becomes token ids."""
