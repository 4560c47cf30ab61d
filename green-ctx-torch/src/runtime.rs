//! What `torch.cuda.cudart()` offers, without the CUDA runtime.
