"""From records to text."""


def write_records(records, separator=","):
    """Return the text of a table; reading it gives the same records, fields as text."""
    lines = []
    for record in records:
        fields = [_field(str(value), separator) for value in record]
        line = separator.join(fields)
        lines.append((line or '""') + "\n")
    return "".join(lines)


def _field(value, separator):
    if any(mark in value for mark in (separator, '"', "\n", "\r")):
        return '"' + value.replace('"', '""') + '"'
    return value
