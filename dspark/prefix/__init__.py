"""What was read stays read: conversations are kept with their caches, and the next prompt starts where they agree."""
