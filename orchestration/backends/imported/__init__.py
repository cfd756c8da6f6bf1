"""What `orchestration/exchange` takes over from other programs: nothing runs here."""
