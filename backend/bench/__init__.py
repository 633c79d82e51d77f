"""Measurements that can be repeated: question sets, the engine's benchmark, recorded examples."""
