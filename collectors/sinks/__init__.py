"""Destinations of records besides the archive: line protocol, a spool on disk, InfluxDB."""
