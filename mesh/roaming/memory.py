"""What a broker remembers for its roaming clients beside their places: who was ever a member, and which claims' keys it has seen.

Of two claims the higher key wins, at every broker, so a broker's next key is above all that it has seen; its clock alone would not do,
because clocks differ.
"""

from __future__ import annotations

from .places import Known, encode_known
from .port import Port
from .wire import Key


class Memory:
    """One broker's. number: the broker's. members: ever known, as a set. wall: ms since 1970, as the caller says."""

    def __init__(self, number: int, port: Port) -> None:
        self.number = number
        self.wall = 0
        self.members = 0
        self._port = port
        self._highest = 0  # time in any key seen

    def restore(self, known: Known) -> None:
        """Go on where an earlier life was."""
        self.members, self._highest = known

    def next_key(self) -> Key:
        """Above all that were seen."""
        self._highest = max(self._highest + 1, self.wall)
        if self._highest > self.wall:
            self._save()
        return self._highest, self.number

    def saw(self, key: Key) -> None:
        """A key of this broker or of another one."""
        if key[0] > self._highest:
            self._highest = key[0]
            if key[0] > self.wall:  # else the next life's clock is above it anyway
                self._save()

    def note_members(self) -> None:
        """Remember those that are known now."""
        members = self.members | self._port.known()
        if members != self.members:
            self.members = members
            self._save()

    def gone(self, number: int) -> None:
        """A member is given up."""
        self.members &= ~(1 << number)
        self._save()

    def others(self) -> int:
        """All members ever known but this one."""
        return (self._port.known() | self.members) & ~(1 << self.number)

    def everybody(self) -> int:
        """All members ever known, this one too."""
        return self._port.known() | self.members | 1 << self.number

    def _save(self) -> None:
        self._port.save_known(encode_known(Known(self.members, self._highest)))
