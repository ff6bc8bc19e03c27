"""Tests that need a pretrained model on this machine."""
