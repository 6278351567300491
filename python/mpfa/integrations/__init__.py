"""Adapters for libraries that run models."""
