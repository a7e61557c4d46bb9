"""Races between decoding settings: arms, prompts, trials, statistics, verdict, export."""
