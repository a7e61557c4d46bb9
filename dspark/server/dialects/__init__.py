"""The wire dialects: each parses a body into an `Order` and renders the parts of the answer as its own frames."""
