"""Trees on one link, deflated (RFC 1951) as one stream: what a tree has in common with earlier ones costs next to nothing.

Trees of different origins agree in most of what is beyond the link, and an origin's next tree agrees with its last one in nearly all.
Both ends keep the stream for as long as the link is up. A packet can be read only after all earlier ones of its link.

It does not know what is in a tree.
"""

from __future__ import annotations

import zlib

_RAW = -15  # no header, window of 32 KiB
_TAIL = b"\0\0\xff\xff"  # how each flush ends; it is not sent
LONGEST = 4 << 20  # bytes of one body: 65,535 brokers


class Packer:
    """The sending end's stream: 256 KiB of memory from the first body on."""

    __slots__ = ("_stream",)

    def __init__(self) -> None:
        self._stream = zlib.compressobj(6, zlib.DEFLATED, _RAW)

    def pack(self, body: bytes) -> bytes:
        """The next body."""
        return (self._stream.compress(body) + self._stream.flush(zlib.Z_SYNC_FLUSH))[: -len(_TAIL)]


class Unpacker:
    """The receiving end's stream."""

    __slots__ = ("_stream",)

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_RAW)

    def unpack(self, data: bytes) -> bytes:
        """The next body. Raises ValueError for what no `Packer` has made, or a body that is too long."""
        try:
            body = self._stream.decompress(data + _TAIL, LONGEST)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if self._stream.unconsumed_tail or self._stream.eof:
            raise ValueError("it is too long, or the stream has ended")
        return body
