"""A loaded target model: forward with hidden taps, cache checkpoint and rollback."""
