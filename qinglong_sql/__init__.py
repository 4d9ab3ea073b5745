"""A durable workflow scheduler whose truth and whose rules live in SQL."""

__version__ = "0.4.0.dev0"
