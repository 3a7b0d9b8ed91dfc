"""`Node`: one broker's membership of one mesh, without sockets and clocks."""
