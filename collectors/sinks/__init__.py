"""Where records go besides the archive: line protocol, a spool on the disk, InfluxDB."""
