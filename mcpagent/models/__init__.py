"""Models and tokens: loading, LoRA, the embedded model, and how a conversation becomes token ids."""
