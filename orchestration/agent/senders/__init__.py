"""Services that send traffic from a host: with sockets, with programs, with prebuilt frames."""
