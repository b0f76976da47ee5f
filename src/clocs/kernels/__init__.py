"""Compiled kernels for the hot loops: Triton for GPUs, C for CPUs."""
