"""Keeping a pair inside the machine's memory: what a prompt will take, and what to give back when memory is short."""
