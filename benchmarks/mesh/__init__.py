"""The mesh alone, without sockets: what a frame costs (`core`), and what a mesh costs as it grows (`growth`)."""
