"""Figures: matplotlib for PNG files, SVG for the report's page."""
