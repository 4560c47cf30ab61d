"""The entry point of the plug-in, which SGLang loads. It imports green_ctx_torch only if `GREEN_CTX_SGLANG` is set.

The plug-in itself is `green_ctx_torch.engines.sglang`.
"""

import os

VARIABLE = "GREEN_CTX_SGLANG"


def plugin() -> None:
    """Installs the plug-in if the variable is set and not `off`. Ends the process if the plug-in cannot be
    installed."""
    text = os.environ.get(VARIABLE, "").strip()
    if text in ("", "off"):
        return
    try:
        from green_ctx_torch.engines import sglang
    except ImportError as error:
        # SGLang logs an exception of a plug-in and continues without the plug-in.
        raise SystemExit(f"{VARIABLE} is set, and green_ctx_torch cannot be imported: {error}") from error
    sglang.install(text)
