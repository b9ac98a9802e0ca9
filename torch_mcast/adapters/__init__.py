"""Groups for frameworks that make process groups by classes of their own instead of by a backend's name:
torch_mcast.adapters.ray_collective and torch_mcast.adapters.torchft_group. Each is imported by its own
name, since it imports the framework."""
