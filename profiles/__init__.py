"""Shipped calibration profiles, one YAML file per machine and pair: priors, never this machine's measurement."""
