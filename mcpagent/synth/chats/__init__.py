"""Chats of people with an agent, as tasks on live servers."""
