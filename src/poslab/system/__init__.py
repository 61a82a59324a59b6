"""This process and this machine: signals, threads, determinism, ranks, devices, files."""
