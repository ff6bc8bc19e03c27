"""Dependent specs: scenarios whose calls build on each other, converted into a dataset."""
