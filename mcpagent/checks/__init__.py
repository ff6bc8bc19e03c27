"""What can be checked before a run: the machine, the environment, the servers, the backend."""
