"""A small shop: a catalogue with search, a basket, a checkout in two steps."""

from __future__ import annotations

from html import escape
from typing import Any

from ._serve import Answer, Asked, Site, page, redirect

__all__ = ["Shop"]

PRODUCTS: dict[str, tuple[str, str, int, str]] = {
    "mug-blue": ("Blue mug", "kitchen", 850, "Stoneware, 350 ml."),
    "mug-red": ("Red mug", "kitchen", 790, "Stoneware, 300 ml."),
    "pan": ("Frying pan", "kitchen", 3200, "Cast iron, 26 cm."),
    "kettle": ("Kettle", "kitchen", 2750, "Steel, 1.5 l, whistles."),
    "lamp": ("Desk lamp", "office", 4100, "Warm light, with a dimmer."),
    "notebook": ("Notebook", "office", 450, "A5, 120 pages, squared."),
    "pen": ("Fountain pen", "office", 1900, "Fine nib, with a converter."),
    "chair": ("Folding chair", "garden", 3600, "Beech, folds flat."),
    "hose": ("Garden hose", "garden", 2400, "20 m, with a nozzle."),
    "spade": ("Spade", "garden", 2950, "Ash handle."),
}
"""Name, department, price in cents, description."""

SHIPPING = {"standard": ("Standard, 3 days", 490), "express": ("Express, 1 day", 1290)}


def _price(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d} EUR"


def _page(title: str, body: str) -> Answer:
    links = "<a href='/'>Shop</a><a href='/basket'>Basket</a><a href='/orders'>Orders</a>"
    return page(title, f"<b>Corner Shop</b> &nbsp; {links}", f"<h1>{escape(title)}</h1>{body}")


class Shop(Site):
    """The state: ``basket`` ``{sku: count}``, ``address`` of the checkout, ``orders``."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"basket": {}, "address": {}, "orders": []}

    def answer(self, asked: Asked) -> Answer:
        """See :meth:`Site.answer`."""
        if asked.method == "POST":
            return self._post(asked)
        if asked.path.startswith("/product/"):
            return self._product(asked.path.removeprefix("/product/"))
        views = {
            "/": lambda: self._catalogue(asked.query),
            "/basket": self._basket,
            "/checkout": lambda: self._checkout({}, ""),
            "/pay": self._pay,
            "/orders": self._orders,
        }
        view = views.get(asked.path)
        return view() if view else Answer("not found", 404)

    def _catalogue(self, query: dict[str, str]) -> Answer:
        words, department = query.get("q", ""), query.get("department", "")
        found = [
            (sku, product)
            for sku, product in PRODUCTS.items()
            if words.lower() in f"{product[0]} {product[3]}".lower()
            and department in ("", product[1])
        ]
        if query.get("sort") == "price":
            found.sort(key=lambda item: item[1][2])
        rows = "".join(
            f"<tr><td><a href='/product/{sku}'>{name}</a></td><td>{kind}</td>"
            f"<td>{_price(cents)}</td></tr>"
            for sku, (name, kind, cents, _) in found
        )
        options = "".join(
            f"<option value='{d}'{' selected' if d == department else ''}>{d or 'all'}</option>"
            for d in ("", "kitchen", "office", "garden")
        )
        form = (
            "<form action='/'><input name='q' aria-label='Search' placeholder='Search' value='"
            f"{escape(words, quote=True)}'> <select name='department' aria-label='Department'>"
            f"{options}</select> <select name='sort' aria-label='Sort'><option value=''>by name"
            "</option><option value='price'>by price</option></select> <button>Find</button></form>"
        )
        shown = f"<table>{rows}</table>" if found else "<p>Nothing was found.</p>"
        return _page("Catalogue", form + shown)

    def _product(self, sku: str) -> Answer:
        if sku not in PRODUCTS:
            return Answer("not found", 404)
        name, _, cents, text = PRODUCTS[sku]
        return _page(
            name,
            f"<p>{text}</p><p>Price: {_price(cents)}</p><form method='post' action='/add'>"
            f"<input type='hidden' name='sku' value='{sku}'><label>Count <input name='count' "
            "type='number' value='1' min='1' max='9'></label><button>Add to basket</button></form>",
        )

    def _basket(self) -> Answer:
        if not self.state["basket"]:
            return _page("Basket", "<p>Your basket is empty.</p>")
        rows = "".join(
            f"<tr><td>{PRODUCTS[sku][0]}</td><td>{count} pcs</td>"
            f"<td>{_price(PRODUCTS[sku][2] * count)}</td><td><form method='post' action='/remove'>"
            f"<button name='sku' value='{sku}' aria-label='Remove {PRODUCTS[sku][0]}'>Remove"
            "</button></form></td></tr>"
            for sku, count in self.state["basket"].items()
        )
        total = f"<p>Total: {_price(self._total())}</p>"
        return _page("Basket", f"<table>{rows}</table>{total}<p><a href='/checkout'>Check out</a>")

    def _total(self) -> int:
        return sum(PRODUCTS[sku][2] * count for sku, count in self.state["basket"].items())

    def _checkout(self, given: dict[str, str], problem: str) -> Answer:
        fields = "".join(
            f"<label>{label} <input name='{name}' value='{escape(given.get(name, ''), quote=True)}'"
            "></label>"
            for name, label in (("name", "Name"), ("street", "Street"), ("city", "City"))
        )
        error = f"<p class='error' role='alert'>{escape(problem)}</p>" if problem else ""
        return _page(
            "Check out",
            f"{error}<form method='post' action='/address'>{fields}<button>Continue</button>"
            "</form>",
        )

    def _pay(self) -> Answer:
        if not self.state["address"] or not self.state["basket"]:
            return redirect("/basket")
        choices = "".join(
            f"<label><input type='radio' name='shipping' value='{key}'"
            f"{' checked' if key == 'standard' else ''}> {label}, {_price(cents)}</label>"
            for key, (label, cents) in SHIPPING.items()
        )
        return _page(
            "Shipping and order",
            f"<form method='post' action='/order'>{choices}<label><input type='checkbox' "
            "name='gift' value='yes'> Gift wrapping</label><label>Note <textarea name='note'>"
            "</textarea></label><button>Place order</button></form>",
        )

    def _orders(self) -> Answer:
        if not self.state["orders"]:
            return _page("Orders", "<p>No orders yet.</p>")
        items = "".join(
            f"<li>Order {number}: "
            + ", ".join(f"{n} x {PRODUCTS[sku][0]}" for sku, n in order["items"].items())
            + f", {order['shipping']}, to {escape(order['name'])} in {escape(order['city'])}, "
            f"total {_price(order['total'])}</li>"
            for number, order in enumerate(self.state["orders"], 1)
        )
        return _page("Orders", f"<ul>{items}</ul>")

    def _post(self, asked: Asked) -> Answer:
        form, basket = asked.form, self.state["basket"]
        sku = form.get("sku", "")
        if asked.path == "/add" and sku in PRODUCTS:
            count = form.get("count", "1")
            if not count.isdigit() or not 1 <= int(count) <= 9:
                return Answer("bad count", 400)
            basket[sku] = min(9, basket.get(sku, 0) + int(count))
            return redirect("/basket")
        if asked.path == "/remove":
            basket.pop(sku, None)
            return redirect("/basket")
        if asked.path == "/address":
            missing = [
                name for name in ("name", "street", "city") if not form.get(name, "").strip()
            ]
            if missing:
                return self._checkout(form, f"Please fill in: {', '.join(missing)}.")
            self.state["address"] = {n: form[n].strip() for n in ("name", "street", "city")}
            return redirect("/pay")
        if asked.path == "/order" and basket and self.state["address"]:
            return self._order(form)
        return Answer("not found", 404)

    def _order(self, form: dict[str, str]) -> Answer:
        shipping = form.get("shipping", "")
        if shipping not in SHIPPING:
            return Answer("bad shipping", 400)
        order: dict[str, Any] = {
            "items": dict(self.state["basket"]),
            "shipping": shipping,
            "gift": form.get("gift") == "yes",
            "note": form.get("note", "").strip(),
            "total": self._total() + SHIPPING[shipping][1],
            **self.state["address"],
        }
        self.state["orders"].append(order)
        self.state["basket"], self.state["address"] = {}, {}
        return redirect("/orders")
