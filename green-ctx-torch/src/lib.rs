//! PyTorch in partitions of one GPU's SMs.

#![deny(unsafe_code)]
