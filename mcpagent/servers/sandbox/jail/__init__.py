"""What runs inside the child process: it locks itself in, then runs the code. Standard library only.

It is loaded by a bare interpreter (no site-packages), so nothing here may import the rest of mcpagent.
"""
