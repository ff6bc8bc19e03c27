"""A model that judges what no rule can check: its question, the call, and its agreement with the rule."""
