"""A real SGLang 0.5.23 on a CPU, with tiny models whose every token is known beforehand. For tests only."""
