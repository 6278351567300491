"""The three forms of a report: terminal tables, JSON and one HTML page."""
