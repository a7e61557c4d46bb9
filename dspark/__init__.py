"""mlx-dspark: speculative decoding for MLX that changes only the speed, and measures it."""

__version__ = "0.1.0"
