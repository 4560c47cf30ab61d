"""Plug-ins for inference engines."""
