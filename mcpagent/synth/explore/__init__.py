"""Tasks for servers that no template knows, from what their tools were seen to do."""
