"""The report as a page: what its pictures show, the pictures, the page, its CSV files, its PDF."""
