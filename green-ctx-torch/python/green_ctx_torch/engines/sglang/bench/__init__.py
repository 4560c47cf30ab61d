"""Measures SGLang under load, with the plug-in and without: `python -m green_ctx_torch.engines.sglang.bench`."""
