"""The entry point that SGLang loads. It imports nothing until `GREEN_CTX_SGLANG` says how to divide the GPU.

The plug-in itself is `green_ctx_torch.engines.sglang`.
"""

import os

VARIABLE = "GREEN_CTX_SGLANG"


def plugin() -> None:
    """Installs the plug-in where the variable is set and not `off`. What does not fit ends the process."""
    text = os.environ.get(VARIABLE, "").strip()
    if text.lower() in ("", "off"):
        return
    try:
        from green_ctx_torch.engines.sglang import plugin as native
    except ImportError as error:
        # SGLang reports an error of a plug-in, and goes on without the plug-in.
        raise SystemExit(f"{VARIABLE} is set, and green_ctx_torch cannot be imported: {error}") from error
    native.install(text)
