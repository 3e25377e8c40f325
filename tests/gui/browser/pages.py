"""Pages that the tests of the browser look at, and how they are looked at."""

from __future__ import annotations

import asyncio

from tests.gui.solver import read_tree
from trajgym.envs.gui import Browser
from trajgym.envs.gui.actions import Element, GoTo, Wait
from trajgym.envs.gui.browser import BrowserLook

__all__ = ["PAGES", "at", "event", "item", "kinds"]

PAGES = {
    "index.html": """<title>Start</title><h1>Start</h1>
        <input aria-label="Name"><select aria-label="Colour"><option>red<option>blue</select>
        <label><input type="checkbox"> Agreed</label>
        <button onclick="document.title = 'clicked'">Press</button>
        <p id="later"></p>
        <button onclick="later.innerHTML = '<button>New</button>'">More</button>""",
    "events": """<button onclick="alert('Hello'); document.title = 'after'">Alert</button>
        <button onclick="document.title = prompt('Who?', 'nobody')">Prompt</button>
        <button onclick="while (true) {}">Hang</button>
        <button onclick="console.log('said'); throw new Error('thrown')">Log</button>
        <a href="/index.html" target="_blank">Other tab</a>
        <a href="/self-closing" target="_blank">Short tab</a>
        <a download="../../report 1.csv" href="data:text/csv,a%2Cb">Download</a>
        <button onclick="picker.click()">Choose</button><input type="file" id="picker"
        style="display:none" onchange="document.title = picker.files[0].size">
        <input type="file" aria-label="Field" onchange="document.title = this.files[0].name">""",
    "self-closing": "<script>setTimeout(() => window.close(), 50)</script>",
    "covered": """<button style="position:absolute;top:50px">Below</button>
        <div id="over" style="position:absolute;top:0;width:300px;height:300px"></div>""",
    "long": """<div style="height:3000px">top</div><button onclick="document.title = 'end'">End
        </button>""",
    "frame": "<h1>Outer</h1><iframe src='/inner' title='In' width=300 height=200></iframe>",
    "inner": "<button onclick=\"top.document.title = 'inner'\">Inside</button>",
    "mouse": """<div id="pad" style="width:400px;height:300px;background:#ddd"></div><script>
        const seen = [];
        for (const kind of ['mousedown', 'mouseup', 'dblclick', 'contextmenu', 'mousemove'])
          pad.addEventListener(kind, e => {
            if (kind != 'mousemove' || e.buttons) seen.push(kind + ':' + e.button);
            document.title = seen.join(' ') + (e.shiftKey ? ' shift' : '');
          });</script>""",
    "unread": "<script>fetch('/big')</script><button onclick='fetch(\"/big?\" + Math.random())'>Go"
    "</button>",
    "big": "x" * (4 << 20),
    "links": "<a href='#x'>Go</a>",
    "scripts": "<a href='javascript:void(document.title = 1)'>Go</a>",
    "hashes": "<button onclick='location.hash = Math.random()'>Go</button>",
    "frames": "<iframe></iframe><iframe src='about:blank'></iframe><iframe srcdoc='<p>hi'></iframe>"
    "<button>Go</button>",
    "redirects": "<script>location = '/redirects?' + Math.random()</script>",
    "refresh": "<meta http-equiv='refresh' content='0'>again",
    "reload": "<script>location.reload()</script>",
    "reload-often": "<button>b</button><script>setInterval(() => location.reload(), 20)</script>",
    **{
        # Each frame takes longer than a second, and so does the time between two documents.
        f"slow-reload-{frames}": f"""<h1>Again</h1><script>let n = 0;
        function draw() {{
          if (++n == {frames}) location.reload();
          const end = performance.now() + 1200;
          while (performance.now() < end);
          requestAnimationFrame(draw);
        }}
        onload = () => requestAnimationFrame(draw);</script>"""
        for frames in (1, 2)
    },
    "ping": "<script>location = '/pong'</script>",
    "pong": "<script>location.replace('/ping')</script>",
    "map": """<div style="height:900px">far</div><canvas id=c width=100 height=100></canvas>
        <map name=m><area shape=rect coords='0,0,50,50' href='#area' alt='Corner'>
        <area shape=circle coords='75,75,20' href='#round' alt='Round'></map>
        <img id=i usemap=#m width=100 height=100><script>i.src = c.toDataURL()</script>""",
    "framed-map": """<p>above<iframe src=/map onload="this.contentWindow.onhashchange = e =>
        document.title = e.newURL.slice(e.newURL.indexOf('#'))"></iframe>""",
    "popups": """<button onclick="for (let i = 0; i < 14; i++) window.open('/other?' + i)">Open
        </button>""",
    "pushes": "<p>p<script>setInterval(() => history.pushState({}, '', '?' + Math.random()), 1)"
    "</script>",
    "mirror": """<input aria-label="Search"><button onclick="document.title = 'pressed'">Go</button>
        <script>document.querySelector('input').oninput = event => {
          for (const part of 'abcde')
            history.replaceState({}, '', `?${part}=${encodeURIComponent(event.target.value)}`);
        };</script>""",
    "hash-often": "<p>h<script>setInterval(() => location.hash = Math.random(), 1)</script>",
    "posts": "<form action='/posts'></form><script>document.forms[0].submit()</script>",
    "touch": """<meta name="viewport" content="width=device-width"><button>Tap</button><script>
        const seen = [];
        for (const kind of ['touchstart', 'click'])
          document.addEventListener(kind, () => {
            seen.push(kind);
            document.title = seen.join(' ');
          });</script>""",
    "frame-reload": "<iframe src='/reload'></iframe><button onclick='document.title = 1'>Go",
    "shadow": """<x-closed></x-closed><input type="date" aria-label="Day"><details>
        <summary onclick="document.title = 'opened'">More</summary>text</details><script>
        customElements.define('x-closed', class extends HTMLElement {
          constructor() {
            super();
            const root = this.attachShadow({mode: 'closed'});
            root.innerHTML = '<button>Inner</button>';
            root.querySelector('button').onclick = () => document.title = 'inner';
          }
        });</script>""",
    "icons": """<style>td, i, div {width: 40px; height: 30px; display: inline-block}</style>
        <table><tr><td><td></table>
        <div id="box"></div><i class="icon-trash"></i><svg width="200" height="60">
        <circle cx="30" cy="30" r="20" fill="red"/>
        <circle cx="90" cy="30" r="20" fill="blue"/></svg>
        <label><input type="checkbox" style="display:none">Hidden box</label><script>
        for (const one of document.querySelectorAll('td, i, #box, circle, label'))
          one.addEventListener('click', event => document.title += one.tagName + ',');
        </script>""",
    "modal": """<button>Behind</button><iframe src="/inner" width="300" height="100"></iframe>
        <div style="position:fixed;inset:0;background:#0008"><button>Confirm</button></div>""",
    "huge": "<button onclick='document.title = 1'>Top</button>"
    + "".join(f"<p><a href='#{n}'>Item {n}</a> <b>text {n}</b>" for n in range(5000)),
    "many": "<script>for (let i = 0; i < 500; i++) console.log('x'.repeat(2000))</script>"
    + "<button>b</button>" * 2000,
}


async def at(browser: Browser, page: str) -> BrowserLook:
    return await browser.act([GoTo(f"http://pages.test/{page}")])


def item(look: BrowserLook, role: str, name: str) -> Element:
    return read_tree("", look.tree).one(role, name).at


async def event(browser: Browser, look: BrowserLook, kind: str) -> str:
    """Return the text of an event of this kind, in this look or a later one."""
    async with asyncio.timeout(60):
        while True:
            for one in look.events:
                if one.kind == kind:
                    return one.text
            look = await browser.act([Wait(0.1)])


def kinds(look: BrowserLook) -> list[str]:
    return [event.kind for event in look.events]
