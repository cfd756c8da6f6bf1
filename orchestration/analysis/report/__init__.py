"""The report as a page: its pictures and their data, the page, its CSV files, its PDF."""
