"""Transports: a server as a child process, over streamable HTTP, or an object in this process."""
