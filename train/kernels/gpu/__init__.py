"""The kernels in Triton, for CUDA (sm_80 and later), and for CPU tensors under TRITON_INTERPRET=1."""
