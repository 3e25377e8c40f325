"""Records under names."""

from fieldtext._reader import FieldTextError, read_records


class Table:
    """Rows by the names in the first record."""

    def __init__(self, names, rows):
        self.names = list(names)
        self.rows = [dict(zip(self.names, row)) for row in rows]

    @classmethod
    def parse(cls, text, separator=","):
        """Read a table whose first record holds the names."""
        records = list(read_records(text, separator))
        if not records:
            return cls([], [])
        names = records[0]
        if len(set(names)) != len(names):
            raise FieldTextError("a name occurs twice", 1)
        return cls(names, records[1:])

    def column(self, name):
        """Return the values under a name; a short row has None there."""
        if name not in self.names:
            raise KeyError(name)
        return [row.get(name) for row in self.rows]
