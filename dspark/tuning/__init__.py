"""Cost curves and what is derived from them. Pure: nothing here touches MLX."""
