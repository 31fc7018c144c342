"""Which request runs when and in which pages: pure Python on plain values, no torch, no sockets."""
