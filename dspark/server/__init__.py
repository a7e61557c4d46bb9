"""The HTTP server: transport, routing and auth, the dialects, and the worker that owns the engine."""
