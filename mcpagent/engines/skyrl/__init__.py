"""Training on SkyRL: its configuration, its episodes, its credit, and a run folder like any other."""
