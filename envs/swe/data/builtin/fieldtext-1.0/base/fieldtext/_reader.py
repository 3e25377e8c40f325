"""From text to records."""


class FieldTextError(ValueError):
    """The text is no table; `line` is where the trouble starts, from 1."""

    def __init__(self, message, line):
        super().__init__(f"line {line}: {message}")
        self.line = line


def read_records(text, separator=","):
    """Yield one list of fields per record.

    A field in double quotes may hold separators, line ends and doubled quotes. Lines without any
    character are skipped.
    """
    if len(separator) != 1 or separator in '"\n\r':
        raise ValueError(f"not a separator: {separator!r}")
    reader = _Reader(text.replace("\r\n", "\n"), separator)
    while not reader.at_end():
        record = reader.record()
        if record != [""] or reader.quoted:
            yield record


class _Reader:
    def __init__(self, text, separator):
        self.text = text
        self.separator = separator
        self.at = 0
        self.line = 1
        self.quoted = False

    def at_end(self):
        return self.at >= len(self.text)

    def record(self):
        fields = []
        self.quoted = False
        while not self.at_end():
            fields.append(self.field())
            mark = self.text[self.at : self.at + 1]
            self.at += 1
            if mark != self.separator:
                self.line += 1
                break
        return fields

    def field(self):
        if not self.at_end() and self.text[self.at] == '"':
            self.quoted = True
            return self.quoted_field()
        start = self.at
        while not self.at_end() and self.text[self.at] not in (self.separator, "\n"):
            self.at += 1
        return self.text[start : self.at]

    def quoted_field(self):
        begun = self.line
        self.at += 1
        parts = []
        while True:
            end = self.text.find('"', self.at)
            if end < 0:
                raise FieldTextError("a quote is never closed", begun)
            parts.append(self.text[self.at : end])
            self.at = end + 1
            if self.text[self.at : self.at + 1] != '"':
                break
            parts.append('"')
            self.at += 1
        if not self.at_end() and self.text[self.at] not in (self.separator, "\n"):
            raise FieldTextError("text after a closing quote", self.line)
        return "".join(parts)
