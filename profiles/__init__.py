"""Shipped calibration profiles, one YAML file per machine and pair. They are priors, never this machine's measurement."""
