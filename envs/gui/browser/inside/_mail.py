"""A small mail client: folders, reading, writing with attachments, moving, deleting."""

from __future__ import annotations

from html import escape
from typing import Any

from ._serve import Answer, Asked, Site, page, redirect

__all__ = ["Mail"]

FOLDERS = ("inbox", "archive", "sent", "trash")
_START = (
    ("Ada Brandt", "ada@office.test", "Meeting on Tuesday",
     "Hello,\n\nthe meeting moves to Tuesday at 14:30, room 12.\n\nAda", ""),
    ("Billing", "billing@power.test", "Your invoice 4711",
     "Dear customer,\n\nplease find your invoice attached. Amount due: 83.20 EUR.", "invoice.csv"),
    ("Chen Wei", "chen@office.test", "Lunch?",
     "Are you free for lunch on Thursday?\n\nChen", ""),
    ("Newsletter", "news@garden.test", "Ten roses for spring",
     "This week in the garden: roses, roses, roses.", ""),
    ("Dana Okafor", "dana@office.test", "Report for the board",
     "Could you send me the figures for March? The code of the project is KITE-7.\n\nDana", ""),
)  # fmt: skip
_ATTACHMENT = "number,amount\n4711,83.20\n"


def _page(title: str, body: str) -> Answer:
    links = "".join(f"<a href='/{name}'>{name.capitalize()}</a>" for name in FOLDERS)
    head = f"<b>Post</b> &nbsp; {links}<a href='/compose'>Write</a>"
    return page(title, head, f"<h1>{escape(title)}</h1>{body}")


class Mail(Site):
    """The state: ``messages``, each with id, folder, read, starred, who, subject, body, files."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {
            "messages": [
                _message(number, "inbox", name, address, "me@home.test", subject, body, file)
                for number, (name, address, subject, body, file) in enumerate(_START, 1)
            ]
        }

    def _find(self, number: str) -> dict[str, Any] | None:
        found = (m for m in self.state["messages"] if str(m["id"]) == number)
        return next(found, None)

    def answer(self, asked: Asked) -> Answer:
        """See :meth:`Site.answer`."""
        _, first, *rest = [*asked.path.split("/"), ""]
        if asked.method == "POST":
            return self._post(first, asked)
        if first in ("", *FOLDERS):
            return self._folder(first or "inbox", asked.query.get("q", ""))
        if first == "compose":
            return self._compose(asked.query, "")
        message = self._find(rest[0]) if rest else None
        if message is None:
            return Answer("not found", 404)
        if first == "file" and message["files"]:
            headers = {"Content-Disposition": f'attachment; filename="{message["files"][0]}"'}
            return Answer(_ATTACHMENT, kind="text/csv", headers=headers)
        return self._read(message) if first == "message" else Answer("not found", 404)

    def _folder(self, folder: str, words: str) -> Answer:
        found = [
            m
            for m in self.state["messages"]
            if m["folder"] == folder
            and words.lower() in f"{m['name']} {m['subject']} {m['body']}".lower()
        ]
        rows = "".join(
            f"<tr class='{'' if m['read'] else 'unread'}'><td>{'*' if m['starred'] else ''}</td>"
            f"<td>{escape(m['to'] if folder == 'sent' else m['name'])}</td>"
            f"<td><a href='/message/{m['id']}'>{escape(m['subject'])}</a></td></tr>"
            for m in found
        )
        search = (
            f"<form action='/{folder}'><input name='q' aria-label='Search mail' value='"
            f"{escape(words, quote=True)}'> <button>Search</button></form>"
        )
        shown = f"<table>{rows}</table>" if found else "<p>No messages.</p>"
        return _page(folder.capitalize(), search + shown)

    def _read(self, message: dict[str, Any]) -> Answer:
        message["read"] = True
        number = message["id"]
        files = "".join(
            f"<p>Attachment: <a href='/file/{number}'>{escape(name)}</a></p>"
            for name in message["files"]
        )
        star = "Remove star" if message["starred"] else "Star"
        buttons = (
            f"<form method='post' action='/act'><input type='hidden' name='id' value='{number}'>"
            f"<button name='do' value='star'>{star}</button> "
            "<button name='do' value='archive'>Archive</button> "
            "<button name='do' value='trash' "
            "onclick=\"return confirm('Delete this message?')\">Delete</button></form>"
        )
        reply = (
            f"<p><a href='/compose?to={escape(message['from'], quote=True)}&amp;"
            f"subject=Re: {escape(message['subject'], quote=True)}'>Reply</a></p>"
        )
        sender = f"<p class='muted'>From {escape(message['name'])} ({escape(message['from'])})</p>"
        text = f"<pre>{escape(message['body'])}</pre>"
        return _page(message["subject"], sender + text + files + buttons + reply)

    def _compose(self, given: dict[str, str], problem: str) -> Answer:
        error = f"<p class='error' role='alert'>{escape(problem)}</p>" if problem else ""
        value = {n: escape(given.get(n, ""), quote=True) for n in ("to", "subject", "body")}
        return _page(
            "Write",
            f"{error}<form method='post' action='/send' enctype='multipart/form-data'>"
            f"<label>To <input name='to' size='40' value='{value['to']}'></label>"
            f"<label>Subject <input name='subject' size='40' value='{value['subject']}'></label>"
            f"<label>Message <textarea name='body' rows='8' cols='60'>{value['body']}</textarea>"
            "</label><label>Attachment <input type='file' name='file'></label>"
            "<button>Send</button></form>",
        )

    def _post(self, first: str, asked: Asked) -> Answer:
        form = asked.form
        if first == "send":
            if "@" not in form.get("to", ""):
                return self._compose(form, "Please give an address to send it to.")
            number = 1 + max(m["id"] for m in self.state["messages"])
            name, content = asked.files.get("file", ("", b""))
            sent = _message(
                number, "sent", "Me", "me@home.test", form["to"].strip(),
                form.get("subject", "").strip(), _lines(form.get("body", "")), name,
            )  # fmt: skip
            self.state["messages"].append({**sent, "read": True, "bytes": len(content)})
            return redirect("/sent")
        message = self._find(form.get("id", ""))
        if first != "act" or message is None:
            return Answer("not found", 404)
        if form.get("do") == "star":
            message["starred"] = not message["starred"]
            return redirect(f"/message/{message['id']}")
        if form.get("do") in FOLDERS:
            message["folder"] = form["do"]
        return redirect("/inbox")


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _message(
    number: int, folder: str, name: str, sender: str, to: str, subject: str, body: str, file: str
) -> dict[str, Any]:
    return {
        "id": number,
        "folder": folder,
        "name": name,
        "from": sender,
        "to": to,
        "subject": subject,
        "body": body,
        "files": [file] if file else [],
        "read": False,
        "starred": False,
    }
