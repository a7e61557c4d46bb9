"""One round of decoding: draft, verify, accept, commit; the stop rule; lookup; cap control."""
